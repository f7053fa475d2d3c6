/*
 * The side where people type: sbatch and salloc (allocator context), srun (local context).
 *
 * Options become environment variables, so that slurmctld keeps them with the job.
 */
#ifndef HP_LOCAL_H
#define HP_LOCAL_H

#include <stdbool.h>

#include "config.h"

void hp_local_init(bool is_allocator);
void hp_local_init_post_opt(const struct hp_config *config, bool is_allocator);

#endif
