"""What Slurm says of nodes: reasons, ``sinfo -R``, ``scontrol show node``, lines of its daemons' logs. Pure.

A reason that a person has typed is nobody's to interpret: it is shown, and never costs a machine, but for the two exact
texts that ask for it.
"""

from __future__ import annotations

import re

from hyperpod.core.finding import Action
from hyperpod.core.node import REASON_PREFIX, nearest_admin_action, parse_admin_action
from hyperpod.health.parse_slurm_reason import SlurmReason, parse_slurm_reason
from hyperpod.health.record import Record, Word, sentence, word_of

_HEAD = re.compile(r"^REASON\s+USER\s+TIMESTAMP\s+NODELIST\s*$")
_ROW = re.compile(
    r"^(?P<reason>.*?\S)\s+(?P<user>[\w.@+-]+(?:\(\d+\))?)\s+"
    r"(?P<time>\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d|Unknown|unknown|N/A)\s+(?P<nodes>\S+)\s*$"
)
_NODE = re.compile(r"^\s*NodeName=(?P<node>\S+)")
_REASON = re.compile(r"^\s*Reason=(?P<reason>.*?)(?:\s*\[(?P<user>[^\]@]*)@(?P<time>[^\]]*)\])?\s*$")
_INLINE_REASON = re.compile(r"\bReason=(?P<reason>.*?)(?:\s*\[(?P<user>[^\]@]*)@(?P<time>[^\]]*)\])?\s*$")
_LOG = (
    re.compile(r"\bupdate_node: node (?P<node>\S+) reason set to: (?P<reason>.+)$"),
    re.compile(
        r"\b(?:[Ss]etting node|drain_nodes: node|node) (?P<node>\S+) (?:state )?(?:set )?to "
        r"(?:INVAL|DRAIN|DOWN|FAIL)\w*\b.*?(?:with )?reason[: ](?: ?set to:)? ?(?P<reason>.+)$"
    ),
    re.compile(r"\b(?:error|Node): [Nn]odes? (?P<node>\S+) (?P<reason>not responding)\b"),
    re.compile(r"\b[Nn]ode (?P<node>\S+) (?P<reason>unexpectedly rebooted)\b"),
    re.compile(r"\b[Nn]ode (?P<node>\S+) has (?P<reason>low (?:real_memory|cpu|socket|tmp_disk)\S*) ?\S*"),
    re.compile(r"\berror: (?P<reason>(?:Prolog|Epilog) error)\b.*?(?:node|on) (?P<node>[\w.-]+)?"),
    re.compile(
        r"\*\*\* (?:STEP|JOB) \S+ STEPD TERMINATED ON (?P<node>\S+) AT \S+ DUE TO "
        r"(?P<reason>JOB NOT ENDING WITH SIGNALS)"
    ),
)
_LOG_HINT = re.compile(r"reason|responding|rebooted|has low|(?:rolog|pilog) error|STEPD TERMINATED|oom.kill event")
"""Every line of a log with a meaning holds one of these."""

_OOM = re.compile(r"\berror: Detected \d+ oom[-_ ]kill event(?:s|\(s\))? in (?:StepId=|step )(?P<job>\d+)")
_FULL = (
    "Node unexpectedly rebooted",
    "batch job complete failure",
    "gres/gpu count reported lower than configured",
    "Low RealMemory",
    "Kill task failed",
    "Not responding",
    "Duplicate jobid",
)
"""``sinfo -R`` cuts reasons off after 20 characters."""

_LOG_WORDS = {
    "unexpectedly rebooted": "Node unexpectedly rebooted",
    "not responding": "Not responding",
    "JOB NOT ENDING WITH SIGNALS": "Kill task failed",
}
_PLAIN = re.compile(
    r"^(?:Not responding|Node unexpectedly rebooted|Kill task failed|Prolog error|Epilog error|Duplicate jobid|"
    r"batch job complete failure|gres/\S+ count (?:reported lower than configured|too low)|Low RealMemory|"
    r"Low (?:CPUs|socket)\b|Low TmpDisk|hyperpod:|Action:(?:Replace|Reboot)|(?i:action: ?(?:replace|reboot)\s*$))"
)
_BLAME = re.compile(r"\[(?P<whose>node|user|site)\]")
_ASKED = re.compile(r"^hyperpod:(?P<cause>\S+)\s*(?P<message>.*)$")


def is_start(text: str) -> bool:
    """True for a line that begins Slurm's list of reasons or nodes."""
    return any(pattern.match(text) for pattern in (_HEAD, _NODE, _REASON))


def is_plain(text: str) -> bool:
    """True for a line that is nothing but a reason known by its beginning."""
    return _PLAIN.match(text) is not None


class SlurmExplainer:
    """Explains reasons."""

    def __init__(self) -> None:
        self._node = ""
        self._has_head = False

    def feed(self, number: int, text: str, *, is_reason: bool = False) -> list[Record]:
        """Take one line.

        Args:
            number: Line of the text.
            text: The line.
            is_reason: The line is a reason when it is nothing else.
        """
        if not text.strip() or _HEAD.match(text):
            self._has_head = self._has_head or bool(text.strip())
            return []
        node = _NODE.match(text)
        if node:
            self._node = node["node"]
            inline = _INLINE_REASON.search(text)
            return self._record(number, self._node, inline["reason"], inline["user"] or "") if inline else []
        reason = _REASON.match(text)
        if reason:
            return self._record(number, self._node, reason["reason"], reason["user"] or "")
        row = _ROW.match(text)
        if row:
            reason_text = row["reason"]
            if len(reason_text) in (19, 20):
                reason_text = next(
                    (full for full in _FULL if full.lower().startswith(reason_text.lower())), reason_text
                )
            return self._record(number, row["nodes"], reason_text, row["user"].partition("(")[0])
        log = self.log(number, text)
        if log or not is_reason:
            return log
        return self._record(number, "", text, "") if not re.match(r"^\s+\w+=", text) else []

    def log(self, number: int, text: str) -> list[Record]:
        """Look for a node's reason in a line of slurmctld's or slurmd's log."""
        if not _LOG_HINT.search(text):
            return []
        killed = _OOM.search(text)
        if killed:
            why = f"job {killed['job']} reached its memory limit"
            return [Record(number, "slurm_log", "OutOfMemoryJob", f"job {killed['job']}", Word.APP, why)]
        for pattern in _LOG:
            found = pattern.search(text)
            if found:
                reason = _LOG_WORDS.get(found["reason"], found["reason"])
                reason = re.sub(r"^low real_memory\S*", "Low RealMemory", reason)
                reason = re.sub(r"^low (cpu|socket)\S*", r"Low \1s", reason)
                return self._record(number, (found["node"] or "").rstrip(",:"), reason, "")
        return []

    def end(self) -> list[Record]:
        """Nothing is left."""
        return []

    def _record(self, number: int, node: str, reason: str, user: str) -> list[Record]:
        text = reason.rstrip("\r\n")
        if text.strip().lower() in ("", "none", "(null)"):
            return []
        asked = parse_admin_action(text)
        if asked is not None:
            word = Word.REPLACE if asked is Action.REPLACE else Word.REBOOT
            why = f"an administrator asks for it with the exact text Action:{asked.value}"
            return [Record(number, "slurm", f"Action{asked.value}", node, word, why)]
        near = nearest_admin_action(text)
        if near:
            why = f"not understood, did you mean {near}? It is exact: no other case, no blank at its end"
            return [Record(number, "slurm", "ActionNotUnderstood", node, Word.WARN, why)]
        if text.strip().lower().startswith(REASON_PREFIX):
            return [self._ours(number, node, text.strip())]
        if user in ("", "root", "slurm"):
            known = parse_slurm_reason(text)
            if known is not None:
                return [self._slurms(number, node, known)]
        blame = _BLAME.search(text)
        whose = f", who blames the {blame['whose']}" if blame else ""
        word = Word.APP if blame and blame["whose"] == "user" else Word.WARN
        why = f"a person's reason{f' ({user})' if user else ''}{whose}: {text.strip()[:120]}"
        note = "a person's drain is never lifted or overwritten"
        return [Record(number, "slurm", "PersonsReason", node, word, sentence(why, note))]

    def _ours(self, number: int, node: str, text: str) -> Record:
        found = _ASKED.match(text)
        cause = found["cause"] if found else text[:60]
        blame = _BLAME.search(text)
        word = Word.APP if blame and blame["whose"] == "user" else Word.WARN
        why = f"our own drain: {text[:160]}"
        note = "what it asks for is decided by the finding itself (hyperpod why NODE)"
        return Record(number, "slurm", "OursDrained", node, word, sentence(why, note, f"cause {cause}"))

    def _slurms(self, number: int, node: str, known: SlurmReason) -> Record:
        if known.code == "SlurmdSilent":
            why = f"{known.message}; the reason alone says nothing of the machine"
            return Record(number, "slurm", known.code, node, Word.UNKNOWN, why)
        note = "counts when seen twice, a minute apart" if known.times > 1 else ""
        word = word_of(known.severity, known.action, known.whose)
        return Record(number, "slurm", known.code, node, word, sentence(known.message, note))
