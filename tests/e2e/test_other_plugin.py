"""Another SPANK plugin that offers --auto-resume, as HyperPod's own does: nobody is bothered, and jobs are armed."""

from __future__ import annotations

import pytest

from tests.e2e.lab import Lab
from tools.cluster import USER

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(240, func_only=True)]

THEIRS = """
#include <stddef.h>
#include <slurm/spank.h>
SPANK_PLUGIN(theirs, 1)
static int take(int val, const char *text, int remote) { (void)val; (void)text; (void)remote; return 0; }
static struct spank_option option = {
	.name = "auto-resume", .arginfo = "N", .usage = "theirs", .has_arg = 2, .cb = take,
};
int slurm_spank_init(spank_t spank, int ac, char *argv[])
{
	(void)ac; (void)argv;
	return spank_option_register(spank, &option);
}
"""
OURS = "/usr/lib/x86_64-linux-gnu/slurm-wlm/hyperpod.so"
SHOW = 'echo "armed=$HYPERPOD_AUTO_RESUME by=$HYPERPOD_ARMED_BY"'


@pytest.fixture
def both(lab: Lab) -> Lab:
    """Commands on the head node load their plugin first, then ours; slurmd's own configuration stays as it is."""
    lab.head("mkdir", "-p", "/tmp/two", user=USER)
    lab.write("/tmp/two/theirs.c", THEIRS, user=USER)
    lab.head("gcc", "-shared", "-fPIC", "-o", "/tmp/two/theirs.so", "/tmp/two/theirs.c", user=USER)
    conf = lab.head("cat", "/etc/slurm/slurm.conf")
    kept = [line for line in conf.splitlines() if not line.lower().startswith("plugstackconfig")]
    lab.write("/tmp/two/slurm.conf", "\n".join([*kept, "PlugStackConfig=/tmp/two/plugstack.conf", ""]), user=USER)
    return lab


def _srun(lab: Lab, words: str, *options: str) -> str:
    lab.write("/tmp/two/plugstack.conf", f"required /tmp/two/theirs.so\noptional {OURS}{words}\n", user=USER)
    command = f"SLURM_CONF=/tmp/two/slurm.conf srun -N1 {' '.join(options)} bash -c '{SHOW}' 2>&1"
    return lab.head("bash", "-c", command, user=USER)


def test_a_wish_told_to_the_other_plugin_arms_the_job_without_a_word(both: Lab) -> None:
    assert _srun(both, " option=theirs", "--auto-resume=4").splitlines() == ["armed=4 by=step"]
    assert _srun(both, " option=theirs").splitlines() == ["armed= by="]


def test_ours_without_that_setting_still_takes_the_wish(both: Lab) -> None:
    shown = _srun(both, "", "--auto-resume=4").splitlines()

    # Slurm's own line is what the setting is for; none of it is an error, and none is ours.
    assert shown[-1] == "armed=4 by=step"
    assert all('option "auto-resume" provided by both' in line for line in shown[:-1])
