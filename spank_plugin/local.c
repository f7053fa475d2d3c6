#include "local.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "log.h"
#include "options.h"
#include "policy.h"

static void set_env(const char *name, const char *value)
{
	int rv = value != NULL ? setenv(name, value, 1) : unsetenv(name);

	if (rv != 0)
		hp_error("can't set %s: %m", name);
}

/* What one attempt of the job around us was told means nothing to a new job. */
static void forget_attempt(bool is_armed)
{
	static const char *const names[] = { HP_ENV_ATTEMPT, HP_ENV_RESUME_FROM,
					     HP_ENV_PREVIOUS_FAILURE, HP_ENV_PEER_LOST };

	for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
		set_env(names[i], NULL);
	/* sbatch would hand it on, and we would count the new job's attempts from there. */
	if (is_armed)
		set_env("SLURM_RESTART_COUNT", NULL);
}

/* Returns whether the job is armed. */
static bool apply_wish(const struct hp_config *config, bool is_allocator, bool inside_job)
{
	struct hp_wish_input in = {
		.place = is_allocator ? HP_PLACE_ALLOCATOR : HP_PLACE_SRUN,
		.inside_job = inside_job,
		.default_on = config->default_on,
		.option = hp_options_auto_resume(),
		.env_value = getenv(HP_ENV_AUTO_RESUME),
		.env_armed_by = getenv(HP_ENV_ARMED_BY),
	};
	struct hp_wish wish = hp_policy_decide_wish(&in);
	char value[HP_VALUE_LEN], shown[HP_SHOWN_LEN];

	if (in.option == NULL && in.env_value != NULL &&
	    hp_policy_parse_attempts(in.env_value, value) != 0)
		hp_tell(HP_ENV_AUTO_RESUME "=%s in the environment is ignored: it must be "
			"\"default\" or a number from 0 to %d", hp_policy_show(in.env_value, shown),
			HP_ATTEMPTS_MAX);
	set_env(HP_ENV_AUTO_RESUME, wish.auto_resume[0] != '\0' ? wish.auto_resume : NULL);
	set_env(HP_ENV_ARMED_BY, hp_policy_armed_name(wish.armed_by));
	return (wish.armed_by != HP_ARMED_NOT);
}

/*
 * sbatch run inside an armed job: Slurm would pass the option on to the new job, which nobody
 * asked to restart.
 */
void hp_local_init(bool is_allocator)
{
	if (is_allocator && getenv("SLURM_JOB_ID") != NULL && getenv(HP_ENV_ARMED_BY) != NULL)
		hp_options_forget_inherited();
}

void hp_local_init_post_opt(const struct hp_config *config, bool is_allocator)
{
	bool inside_job = getenv("SLURM_JOB_ID") != NULL;

	hp_options_take_theirs(environ);

	bool is_armed = apply_wish(config, is_allocator, inside_job);

	if (is_allocator && inside_job)
		forget_attempt(is_armed);
	if (hp_options_checkpoint_dir() != NULL)
		set_env(HP_ENV_CHECKPOINT_DIR, hp_options_checkpoint_dir());
}
