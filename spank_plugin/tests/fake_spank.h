/*
 * A SPANK without Slurm: the test sets what a step looks like, and looks at what came of it.
 */
#ifndef HP_FAKE_SPANK_H
#define HP_FAKE_SPANK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <slurm/spank.h>

struct spank_handle {
	enum spank_context context;
	bool in_task; /* task items are known only inside a task's hooks */
	uint32_t job_id, step_id, array_job_id, array_task_id, restart_count;
	uid_t uid;
	uint32_t rank;
	int local_id;
	pid_t pid;
	int status;
};

extern struct spank_handle fake;

/* Back to an ordinary step 0 of job 42 without environment, options or log. */
void fake_reset(enum spank_context context);

/* The job's environment in slurmstepd. */
void fake_setenv(const char *name, const char *value);
const char *fake_getenv(const char *name); /* NULL when unset */

/* Type an option as a person would (or as Slurm passes it on). Returns the callback's answer. */
int fake_option(const char *name, const char *value);
const struct spank_option *fake_find_option(const char *name);

/* Everything logged so far; and how many lines hold the text. */
const char *fake_log(void);
int fake_log_count(const char *text);

/* Run the hooks as Slurm does. */
int fake_init(int ac, char *argv[]);
int fake_post_opt(void);
int fake_task_init(void);
int fake_task_start(uint32_t rank);
int fake_task_exit(uint32_t rank, int status);
int fake_exit(void);

#endif
