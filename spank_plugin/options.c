#include "options.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "log.h"
#include "policy.h"

#define OPTIONAL_ARGUMENT 2 /* getopt_long's number, which Slurm passes on */

static char auto_resume[HP_VALUE_LEN];
static char checkpoint_dir[HP_PATH_LEN];

const char *hp_options_auto_resume(void)
{
	return (auto_resume[0] != '\0' ? auto_resume : NULL);
}

const char *hp_options_checkpoint_dir(void)
{
	return (checkpoint_dir[0] != '\0' ? checkpoint_dir : NULL);
}

/*
 * A bare option of sbatch reaches the srun in the script as this text (seen with 24.11: Slurm
 * prints the NULL into SLURM_SPANK__SLURM_SPANK_OPTION_hyperpod_auto_resume).
 */
#define BARE_INHERITED "(null)"

/*
 * A callback may run several times. At the command line Slurm goes through the environment, the
 * #SBATCH lines and the arguments in that order, so the last value wins as for its own options.
 * In slurmstepd the step's launch message comes before what the job's environment passed on
 * (spank.c, 22.05), so the first value wins.
 */
static bool has_newer_value(const char *stored, int remote)
{
	return (remote && stored[0] != '\0');
}

static int take_auto_resume(int val, const char *text, int remote)
{
	char value[HP_VALUE_LEN], shown[HP_SHOWN_LEN];

	(void)val;
	if (has_newer_value(auto_resume, remote))
		return (0);
	if (text != NULL && strcmp(text, BARE_INHERITED) == 0)
		text = NULL;
	if (hp_policy_parse_attempts(text, value) != 0) {
		if (remote) {
			hp_info("--auto-resume=%s ignored: not a number from 0 to %d",
				hp_policy_show(text, shown), HP_ATTEMPTS_MAX);
			return (0);
		}
		hp_error("--auto-resume=%s: give a number of attempts from 0 to %d (0 = off), "
			 "or no value for the cluster's default",
			 hp_policy_show(text, shown), HP_ATTEMPTS_MAX);
		return (-1);
	}
	(void)snprintf(auto_resume, sizeof(auto_resume), "%s", value);
	return (0);
}

static int take_checkpoint_dir(int val, const char *text, int remote)
{
	char shown[HP_SHOWN_LEN];

	(void)val;
	if (has_newer_value(checkpoint_dir, remote))
		return (0);
	if (!hp_policy_is_checkpoint_dir(text)) {
		if (remote) {
			hp_info("--checkpoint-dir ignored: not an absolute path");
			return (0);
		}
		hp_error("--checkpoint-dir=%s: give an absolute path, such as /fsx/run1, without "
			 "control characters and shorter than %d bytes",
			 hp_policy_show(text, shown), HP_PATH_LEN);
		return (-1);
	}
	(void)snprintf(checkpoint_dir, sizeof(checkpoint_dir), "%s", text);
	return (0);
}

static struct spank_option options[] = {
	{
		.name = "auto-resume",
		.arginfo = "N",
		.usage = "restart the job from its last good checkpoint when a node or a task "
			 "fails, with N attempts at most (2 to 1000, with '='; --auto-resume "
			 "alone or 1: the cluster's default; 0: off)",
		.has_arg = OPTIONAL_ARGUMENT,
		.cb = take_auto_resume,
	},
	{
		.name = "checkpoint-dir",
		.arginfo = "PATH",
		.usage = "absolute path of the directory with the job's checkpoints; the newest "
			 "complete one is offered in HYPERPOD_RESUME_FROM",
		.has_arg = 1,
		.cb = take_checkpoint_dir,
	},
};

void hp_options_forget_inherited(void)
{
	static const char *const names[] = {
		"_SLURM_SPANK_OPTION_hyperpod_auto_resume",
		"SPANK__SLURM_SPANK_OPTION_hyperpod_auto_resume",
		"SLURM_SPANK__SLURM_SPANK_OPTION_hyperpod_auto_resume",
	};

	for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
		(void)unsetenv(names[i]);
}

void hp_options_register(spank_t spank, bool is_theirs)
{
	auto_resume[0] = '\0';
	checkpoint_dir[0] = '\0';
	for (size_t i = is_theirs ? 1 : 0; i < sizeof(options) / sizeof(options[0]); i++) {
		spank_err_t err = spank_option_register(spank, &options[i]);

		/* Whoever submits a job can't help it; the administrator sees it in slurmd's log. */
		if (err != ESPANK_SUCCESS && spank_context() == S_CTX_REMOTE)
			hp_info("--%s can't be offered: %s", options[i].name, spank_strerror(err));
		else if (err != ESPANK_SUCCESS)
			hp_debug("--%s can't be offered: %s", options[i].name, spank_strerror(err));
	}
}

void hp_options_take_theirs(char *const environment[])
{
	const char *text = hp_policy_foreign_option(environment);
	char value[HP_VALUE_LEN], shown[HP_SHOWN_LEN];

	if (auto_resume[0] != '\0' || text == NULL)
		return;
	if (strcmp(text, BARE_INHERITED) == 0)
		text = NULL;
	if (hp_policy_parse_attempts(text, value) != 0)
		hp_debug("another plugin's --auto-resume=%s is not understood",
			 hp_policy_show(text, shown));
	else
		(void)snprintf(auto_resume, sizeof(auto_resume), "%s", value);
}
