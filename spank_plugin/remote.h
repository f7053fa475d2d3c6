/*
 * The side where tasks run: slurmstepd, as root.
 *
 * Asks the agent which environment this attempt gets, and reports every task's start and exit.
 */
#ifndef HP_REMOTE_H
#define HP_REMOTE_H

#include <stddef.h>

#include <slurm/spank.h>

#include "config.h"

/* The configuration must outlive the process's other calls. */
void hp_remote_init_post_opt(spank_t spank, const struct hp_config *config);
void hp_remote_task_init(spank_t spank); /* in the task's process, as the user */
void hp_remote_task_start(spank_t spank);
void hp_remote_task_exit(spank_t spank);
void hp_remote_exit(spank_t spank);

#endif
