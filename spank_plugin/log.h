/*
 * One prefix for every line we log, so that an administrator can grep for it.
 *
 * Slurm's own functions send the lines to slurmd's log (slurmstepd) or to stderr (srun, sbatch,
 * salloc). Nothing in this plugin writes to stdout.
 */
#ifndef HP_LOG_H
#define HP_LOG_H

#include <stddef.h>

#include <slurm/spank.h>

#define hp_error(fmt, ...) slurm_error("hyperpod: " fmt, ##__VA_ARGS__)
#define hp_info(fmt, ...) slurm_info("hyperpod: " fmt, ##__VA_ARGS__)
#define hp_debug(fmt, ...) slurm_debug("hyperpod: " fmt, ##__VA_ARGS__)

/* Lines for the person at the terminal that are no error: "sbatch: hyperpod: ...". */
#define hp_tell(fmt, ...) slurm_spank_log("hyperpod: " fmt, ##__VA_ARGS__)

#endif
