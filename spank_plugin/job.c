#include "job.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <slurm/slurm.h>

#include "log.h"
#include "policy.h"

_Static_assert((int32_t)SLURM_BATCH_SCRIPT == HP_STEP_BATCH, "batch step id");
_Static_assert((int32_t)SLURM_EXTERN_CONT == HP_STEP_EXTERN, "extern step id");
_Static_assert((int32_t)SLURM_INTERACTIVE_STEP == HP_STEP_INTERACTIVE, "interactive step id");

#define HET_GROUPS_MAX 128 /* MAX_HET_JOB_COMPS in Slurm's source */

static int64_t get_number(spank_t spank, spank_item_t item, const char *name)
{
	uint32_t value = NO_VAL;
	spank_err_t err = spank_get_item(spank, item, &value);

	if (err != ESPANK_SUCCESS) {
		hp_debug("%s unknown: %s", name, spank_strerror(err));
		return (HP_NULL);
	}
	return (value == NO_VAL || value == INFINITE ? HP_NULL : (int64_t)value);
}

const char *hp_job_getenv(spank_t spank, const char *name, char *buf, size_t cap)
{
	spank_err_t err = spank_getenv(spank, name, buf, (int)cap);

	if (err == ESPANK_SUCCESS)
		return (buf);
	if (err != ESPANK_ENV_NOEXIST)
		hp_debug("%s unreadable: %s", name, spank_strerror(err));
	return (NULL);
}

static int64_t get_env_number(spank_t spank, const char *name)
{
	char text[32];
	char *end = NULL;
	unsigned long value;

	if (hp_job_getenv(spank, name, text, sizeof(text)) == NULL)
		return (HP_NULL);
	errno = 0;
	value = strtoul(text, &end, 10);
	if (errno != 0 || end == text || *end != '\0' || text[0] == '-' || value >= NO_VAL)
		return (HP_NULL);
	return ((int64_t)value);
}

int64_t hp_job_restart_count(spank_t spank)
{
	int64_t count = get_number(spank, S_SLURM_RESTART_COUNT, "restart count");
	int64_t from_env = get_env_number(spank, "SLURM_RESTART_COUNT");

	if (from_env > count)
		count = from_env;
	return (count == HP_NULL ? 0 : count);
}

/* Slurm tells only the batch step; a step started by srun inherits the batch step's variables. */
static void describe_array(spank_t spank, struct hp_report *report)
{
	report->array_job_id = get_number(spank, S_JOB_ARRAY_ID, "array job id");
	report->array_task_id = get_number(spank, S_JOB_ARRAY_TASK_ID, "array task id");
	if (report->array_task_id == HP_NULL && report->step_id != HP_STEP_BATCH) {
		report->array_job_id = get_env_number(spank, "SLURM_ARRAY_JOB_ID");
		report->array_task_id = get_env_number(spank, "SLURM_ARRAY_TASK_ID");
	}
	if (report->array_job_id == 0 || report->array_job_id == HP_NULL ||
	    report->array_task_id == HP_NULL) {
		report->array_job_id = HP_NULL;
		report->array_task_id = HP_NULL;
	}
}

/* SPANK has no item for it. Every component's job id is in the environment, the leader's first. */
static void describe_het(spank_t spank, struct hp_report *report)
{
	int64_t size = get_env_number(spank, "SLURM_HET_SIZE");
	char name[64];

	report->het_job_id = get_env_number(spank, "SLURM_HET_JOB_ID");
	report->het_offset = get_env_number(spank, "SLURM_HET_JOB_OFFSET");
	if (report->het_job_id != HP_NULL || size == HP_NULL || size > HET_GROUPS_MAX)
		return;
	report->het_job_id = get_env_number(spank, "SLURM_JOB_ID_HET_GROUP_0");
	for (int64_t i = 0; i < size; i++) {
		(void)snprintf(name, sizeof(name), "SLURM_JOB_ID_HET_GROUP_%d", (int)i);
		if (get_env_number(spank, name) == report->job_id)
			report->het_offset = i;
	}
}

/* Not from the job's environment: there srun leaves the name of the node the script runs on. */
static void describe_node(char node[HP_NODE_LEN])
{
	const char *name = getenv("SLURMD_NODENAME");

	if (name != NULL && name[0] != '\0') {
		(void)snprintf(node, HP_NODE_LEN, "%s", name);
		return;
	}
	node[0] = '\0';
	(void)gethostname(node, HP_NODE_LEN - 1);
	node[HP_NODE_LEN - 1] = '\0';
	node[strcspn(node, ".")] = '\0';
}

int hp_job_describe(spank_t spank, struct hp_report *report, char node[HP_NODE_LEN])
{
	uint32_t step_id = NO_VAL;
	uid_t uid = (uid_t)-1;
	spank_err_t err = spank_get_item(spank, S_JOB_STEPID, &step_id);

	*report = (struct hp_report){ .rank = -1, .local_id = -1, .node = node,
				      .exit_code = HP_NULL, .signal = HP_NULL };
	if (err != ESPANK_SUCCESS) {
		hp_debug("step id unknown: %s", spank_strerror(err));
		return (-1);
	}
	report->step_id = hp_policy_normalise_step(step_id);
	report->job_id = get_number(spank, S_JOB_ID, "job id");
	if (report->job_id == HP_NULL)
		return (-1);
	err = spank_get_item(spank, S_JOB_UID, &uid);
	if (err != ESPANK_SUCCESS) {
		hp_debug("uid unknown: %s", spank_strerror(err));
		return (-1);
	}
	report->uid = (int64_t)uid;
	report->restart_count = hp_job_restart_count(spank);
	describe_array(spank, report);
	describe_het(spank, report);
	describe_node(node);
	return (0);
}

void hp_job_describe_task(spank_t spank, struct hp_report *report)
{
	int local_id = -1;
	pid_t pid = 0;
	spank_err_t err;

	report->rank = get_number(spank, S_TASK_GLOBAL_ID, "rank");
	if (report->rank == HP_NULL)
		report->rank = -1;
	err = spank_get_item(spank, S_TASK_ID, &local_id);
	if (err != ESPANK_SUCCESS)
		hp_debug("local task id unknown: %s", spank_strerror(err));
	err = spank_get_item(spank, S_TASK_PID, &pid);
	if (err != ESPANK_SUCCESS)
		hp_debug("task pid unknown: %s", spank_strerror(err));
	report->local_id = local_id;
	report->pid = pid;
}
