"""Findings that no check of the agent's runner makes, described as checks are.

The controller makes most of them, from what Slurm, EC2 or a comparison of nodes says; the agent makes some about
itself. Their modes hold as those of checks do, except where a finding only tells what was done already.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from hyperpod.core.node import Role
from hyperpod.health import users
from hyperpod.health.check import EVERYWHERE, WORKERS, About


class Place(StrEnum):
    """Where a check runs, or a finding is made."""

    NODE = "node"
    CONTROLLER = "controller"


@dataclass(frozen=True)
class Elsewhere:
    """One name of findings.

    Attributes:
        about: What people are told.
        place: Who makes them.
        by_hand: What to do instead of running it by hand.
        roles: Which nodes it is about.
        why_act: Why its mode stays ``act``; empty when it can be changed.
        settings: Where its settings are; empty when there are none.
        rhythm: How often it is looked at, in words.
    """

    about: About
    place: Place
    by_hand: str
    roles: frozenset[Role] = WORKERS
    why_act: str = ""
    settings: str = ""
    rhythm: str = "at once"


_SLURM = About(
    title="What Slurm itself says against a node",
    reads="The reason for which slurmctld has drained or downed a node, when Slurm has set it. It is read on the head "
    "node; a reason that a person has typed is never interpreted.",
    means="slurmd counts less than is configured, or something failed on the node that Slurm started there. A reason "
    "of an earlier boot is void.",
    does="FATAL, reboot, for what slurmd counts too little of, when it is seen again a minute later: slurmd may have "
    "started before the driver. All others are WARN. Observed or off, Slurm's own drain stays: it is not ours.",
    codes={
        "GresMissing": "slurmd counts fewer accelerators than configured.",
        "LowMemory": "slurmd counts less memory than configured.",
        "LowCpus": "slurmd counts fewer processors than configured.",
        "LowTmpDisk": "slurmd counts less temporary disk than configured (WARN).",
        "SlurmdSilent": "slurmctld does not hear the node's slurmd (WARN).",
        "UnexpectedReboot": "The node came back with another boot time than slurmctld knew (WARN).",
        "KillTaskFailed": "A job's processes could not be killed (WARN); leftovers says whether they hang.",
        "PrologFailed": "The prolog failed on the node: the site's matter (WARN).",
        "EpilogFailed": "The epilog failed on the node: the site's matter (WARN).",
        "BatchCompleteFailed": "slurmd could not end a batch job as it should (WARN).",
        "LaunchFailed": "slurmd could not start a job (WARN).",
        "DuplicateJob": "slurmd has a job under a number that is in use (WARN).",
    },
    source="Slurm's own texts, from its source.",
)

_STATUS = About(
    title="EC2's own checks of the machine",
    reads="DescribeInstanceStatus, asked for from the head node every 15 seconds; only on EC2.",
    means="EC2 cannot reach the machine, its host or its disk. Such a prober errs, too: it counts only when it fails "
    "for two minutes in one boot.",
    does="FATAL, replace; a failed check of the system on the machine is a reboot first, and a WARN while its agent is "
    "heard. Observed: it is shown, and nothing is done.",
    codes={
        "SystemCheckFailed": "The host below the machine fails its check.",
        "InstanceCheckFailed": "The system on the machine fails its check.",
        "VolumeCheckFailed": "A disk of the machine fails its check.",
    },
    source="EC2's documentation of status checks.",
)

_EVENT = About(
    title="What EC2 has scheduled for the machine",
    reads="The scheduled events in DescribeInstanceStatus, asked for from the head node every 15 seconds; only on EC2.",
    means="EC2 will stop, reboot or retire the machine at a time that it names. No fault of the node.",
    does="New work is kept away, jobs may end; the machine is replaced (for InstanceReboot: rebooted) when it is free. "
    "15 minutes before the time it is FATAL and the job is moved. Observed or off, EC2 does it all the same, under "
    "the job.",
    codes={
        "InstanceRetirement": "The machine's hardware is given up.",
        "InstanceStop": "The machine is stopped.",
        "InstanceReboot": "The machine is rebooted.",
        "SystemReboot": "The host below is rebooted.",
        "SystemMaintenance": "The host below is worked on.",
        "ScheduledEvent": "Another event, or one without a name; it is shown only.",
    },
    source="EC2's documentation of scheduled events.",
)

_SPOT = About(
    title="EC2 takes the spot machine back",
    reads="DescribeSpotInstanceRequests, asked for from the head node every 15 seconds; only on EC2. The check "
    "ec2_notice reads the same on the machine itself.",
    means="The machine is gone in two minutes. No fault of the node.",
    does="FATAL, replace: the job is moved at once. Observed or off, the job dies with the machine.",
    codes={"SpotInterruption": "The machine is marked for termination or stop."},
    source="EC2's documentation of spot interruptions.",
)

_DEEP = About(
    title="What a deep check has found on the node",
    reads="What programs on idle nodes compute, store and send under load, compared on the head node: by hyperpod "
    "health deep, and before a node's first job where OnStartDeepHealthChecks asks for it (until then the node is "
    "drained with the reason deep/BeforeFirstJob).",
    means="A wrong answer is the node's own fault. Slower than the other nodes is a hint: one method alone proves "
    "nothing.",
    does="FATAL, replace, for wrong answers; reboot for DcgmFailure, drain for NetworkCut. All others are WARN, or "
    "UNKNOWN. Observed: a node still waits for the check before its first job, but its outcome keeps nobody out. Off: "
    "nothing is found, and no node waits; the figures of a check by hand are shown.",
    codes={
        "MemoryCorrupt": "Memory gave back other patterns than were written.",
        "CpuCorrupt": "A processor computed something wrong.",
        "ComputeCorrupt": "A product of matrices is wrong.",
        "DiskCorrupt": "A file was read back with another checksum.",
        "DcgmFailure": "NVIDIA's diagnostics failed.",
        "NetworkCut": "The node reaches no other one, and they reach each other.",
        "CollectiveFailed": "The all-reduce failed or gave wrong sums; it accuses nobody.",
        "MemorySlow": "Memory is slower than on the other nodes (WARN).",
        "DiskSlow": "The disk is slower than on the other nodes (WARN).",
        "ComputeSlow": "Products of matrices are slower than on the other nodes (WARN).",
        "CollectiveSlow": "The all-reduce is slower than on the other nodes (WARN).",
        "NetworkSlow": "Most links of the node are slow (WARN).",
        "LinkSlow": "One link of the node is slow; the device is the other end (WARN).",
        "DeepUnknown": "A kind of check could not tell anything (UNKNOWN).",
    },
    source="Our own judgement; known results, and medians over the nodes of a run.",
)

_LEASE = About(
    title="The node was cut off and has fenced itself",
    reads="The agent's own contact with the controller, the head node and three peers.",
    means="The node was alone for the whole lease, and its jobs may have been started elsewhere.",
    does="The agent has killed the processes of resumable jobs; the finding tells it when contact is back. WARN, the "
    "site's matter: it drains nothing.",
    codes={"LeaseLost": "Processes of jobs were killed because the node was cut off (WARN)."},
    source="Our own judgement: two writers must never share a checkpoint.",
)

_AGENT = About(
    title="The agent says something of itself",
    reads="Its own configuration.",
    means="What the configuration says of checks cannot be used; they run with their defaults.",
    does="WARN, the site's matter: it drains nothing. hyperpod validate finds the same before.",
    codes={"SettingsRefused": "The settings of the checks are not used (WARN)."},
    source="Our own judgement: a node without an agent would be lost over a misspelt limit.",
)

_USER = About(
    title="A file among this site's checks that does not run",
    reads=f"The files in {users.FOLDER}, their owners, modes and first lines.",
    means="A file that looks like a check is none that root may run. Checks that run are user.NAME.",
    does="WARN: it drains nothing. Mend the file, or take it away.",
    codes={code: users.ABOUT.codes[code] for code in (users.REFUSED, users.IGNORED)},
    source="Our own judgement: what others than root may change, root does not run.",
)

_PROVIDER = "the controller asks EC2 for it: hyperpod why NODE shows its findings"
_SAFETY = "its mode stays act: it drains nothing, and tells what the fencing has killed, which policy cannot switch off"
_TELLS = "its mode stays act: it drains nothing, and without it nobody would see that"

ELSEWHERE: Mapping[str, Elsewhere] = {
    "slurm": Elsewhere(_SLURM, Place.CONTROLLER, "the controller reads Slurm's reasons: hyperpod why NODE shows them"),
    "ec2_status": Elsewhere(_STATUS, Place.CONTROLLER, _PROVIDER, rhythm="15 s"),
    "ec2_event": Elsewhere(_EVENT, Place.CONTROLLER, _PROVIDER, rhythm="15 s"),
    "ec2_spot": Elsewhere(_SPOT, Place.CONTROLLER, _PROVIDER, rhythm="15 s"),
    "deep": Elsewhere(
        _DEEP,
        Place.CONTROLLER,
        "the controller compares what idle nodes do under load: hyperpod health deep begins one",
        settings="Hyperpod.Health.Deep",
        rhythm="on demand",
    ),
    "lease": Elsewhere(
        _LEASE, Place.NODE, "the agent watches it all the time: hyperpod health shows it", why_act=_SAFETY
    ),
    "agent": Elsewhere(
        _AGENT,
        Place.NODE,
        "the agent looks at it when it starts: hyperpod health shows it",
        EVERYWHERE,
        why_act=f"{_TELLS} the policy is not in force",
    ),
    "user": Elsewhere(
        _USER,
        Place.NODE,
        f"the agent looks into {users.FOLDER} every minute: hyperpod health shows it",
        EVERYWHERE,
        why_act=f"{_TELLS} a check does not run; take the file away",
    ),
}
