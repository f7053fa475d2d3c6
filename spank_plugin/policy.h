/*
 * What the words mean: values of options, who armed a job, which environment keys we accept.
 *
 * Pure: no Slurm header, no I/O, no clock, no environment. Everything arrives as an argument.
 */
#ifndef HP_POLICY_H
#define HP_POLICY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define HP_ENV_AUTO_RESUME "HYPERPOD_AUTO_RESUME"
#define HP_ENV_ARMED_BY "HYPERPOD_ARMED_BY"
#define HP_ENV_CHECKPOINT_DIR "HYPERPOD_CHECKPOINT_DIR"
#define HP_ENV_ATTEMPT "HYPERPOD_ATTEMPT"
#define HP_ENV_RESUME_FROM "HYPERPOD_RESUME_FROM"
#define HP_ENV_PREVIOUS_FAILURE "HYPERPOD_PREVIOUS_FAILURE"
#define HP_ENV_PEER_LOST "HYPERPOD_PEER_LOST"
/* What an agent that cannot ask the controller gives a batch step; see hp_remote_task_init. */
#define HP_ENV_IF_RESTARTED "HYPERPOD_IF_RESTARTED"

#define HP_ATTEMPTS_MAX 1000
#define HP_VALUE_LEN 16	  /* an --auto-resume value with its NUL */
#define HP_PATH_LEN 4096  /* a path with its NUL, as PATH_MAX */

#define HP_SHOWN_LEN 81	  /* what a message repeats of a wrong value, with its NUL */

/* Slurm's special step ids as they travel in reports. */
#define HP_STEP_EXTERN (-4)
#define HP_STEP_BATCH (-5)
#define HP_STEP_INTERACTIVE (-6)

enum hp_armed_by {
	HP_ARMED_NOT = 0,
	HP_ARMED_JOB,  /* sbatch or salloc said so: the whole job */
	HP_ARMED_STEP, /* an srun inside a script said so */
};

enum hp_place {
	HP_PLACE_ALLOCATOR = 0, /* sbatch, salloc */
	HP_PLACE_SRUN,
	HP_PLACE_BATCH_STEP, /* slurmstepd that runs the batch script */
	HP_PLACE_STEP,	     /* slurmstepd of any other step */
};

struct hp_wish_input {
	enum hp_place place;
	bool inside_job;	  /* the command itself runs inside a job */
	bool default_on;	  /* the cluster arms jobs without a flag */
	const char *option;	  /* checked option value, NULL when not given */
	const char *env_value;	  /* HP_ENV_AUTO_RESUME, NULL when unset */
	const char *env_armed_by; /* HP_ENV_ARMED_BY, NULL when unset */
};

struct hp_wish {
	char auto_resume[HP_VALUE_LEN]; /* "" when nobody said anything */
	enum hp_armed_by armed_by;
};

/*
 * Read an --auto-resume value. NULL and "" (bare option) and "default" give "default", 0..1000
 * gives the number without leading zeros. Returns 0, or -1 and leaves out alone.
 */
int hp_policy_parse_attempts(const char *text, char out[HP_VALUE_LEN]);

/*
 * What another plugin's --auto-resume was given, from an environment in which Slurm stores options
 * as _SLURM_SPANK_OPTION_<plugin>_<option>. NULL when nobody else's was given. "" for a bare one.
 */
const char *hp_policy_foreign_option(char *const environment[]);

/* Absolute, printable on one line, and short enough for the kernel. */
bool hp_policy_is_checkpoint_dir(const char *path);

/* Copy text for a message: control characters become '?', and what doesn't fit is cut off. */
const char *hp_policy_show(const char *text, char out[HP_SHOWN_LEN]);

/* Decide whether the job is armed, with which value, and by whom. */
struct hp_wish hp_policy_decide_wish(const struct hp_wish_input *in);

/* "job", "step", or NULL when not armed. */
const char *hp_policy_armed_name(enum hp_armed_by armed_by);

/* Slurm's step id (unsigned) as a report carries it: special steps are small negative numbers. */
int64_t hp_policy_normalise_step(uint32_t step_id);

/* True for HYPERPOD_ followed by at least one of A-Z, 0-9, _. */
bool hp_policy_is_env_key(const char *key, size_t len);

#endif
