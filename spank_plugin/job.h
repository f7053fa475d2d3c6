/*
 * Finds out which job, array task, het component and step this slurmstepd serves.
 */
#ifndef HP_JOB_H
#define HP_JOB_H

#include <stddef.h>

#include <slurm/spank.h>

#include "message.h"

#define HP_NODE_LEN 256

/* Fill everything about the job and step, none about a task. Returns 0, or -1 without a job. */
int hp_job_describe(spank_t spank, struct hp_report *report, char node[HP_NODE_LEN]);

/*
 * How often the job was restarted, 0 when nobody knows. With 24.11 SPANK's item stays 0, and the
 * batch step's environment has the variable only from slurm_spank_task_init on.
 */
int64_t hp_job_restart_count(spank_t spank);

/* Fill rank, local_id and pid of the task the hook is called for. */
void hp_job_describe_task(spank_t spank, struct hp_report *report);

/* A variable of the job's environment in buf, or NULL when it is unset or doesn't fit. */
const char *hp_job_getenv(spank_t spank, const char *name, char *buf, size_t cap);

#endif
