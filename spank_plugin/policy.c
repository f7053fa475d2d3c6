#include "policy.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int hp_policy_parse_attempts(const char *text, char out[HP_VALUE_LEN])
{
	unsigned long attempts;
	char *end = NULL;

	if (text == NULL || text[0] == '\0' || strcmp(text, "default") == 0) {
		(void)snprintf(out, HP_VALUE_LEN, "default");
		return (0);
	}
	/* strtoul would also take blanks and signs. */
	if (strspn(text, "0123456789") != strlen(text))
		return (-1);
	errno = 0;
	attempts = strtoul(text, &end, 10);
	if (errno != 0 || end == text || *end != '\0' || attempts > HP_ATTEMPTS_MAX)
		return (-1);
	(void)snprintf(out, HP_VALUE_LEN, "%lu", attempts);
	return (0);
}

bool hp_policy_is_checkpoint_dir(const char *path)
{
	size_t len;

	if (path == NULL || path[0] != '/')
		return (false);
	len = strlen(path);
	if (len >= HP_PATH_LEN)
		return (false);
	for (size_t i = 0; i < len; i++) {
		if ((unsigned char)path[i] < 0x20 || path[i] == 0x7f)
			return (false);
	}
	return (true);
}

const char *hp_policy_show(const char *text, char out[HP_SHOWN_LEN])
{
	(void)snprintf(out, HP_SHOWN_LEN, "%s", text != NULL ? text : "");
	for (char *c = out; *c != '\0'; c++) {
		if ((unsigned char)*c < 0x20 || *c == 0x7f)
			*c = '?';
	}
	return (out);
}

static enum hp_armed_by armed_from_name(const char *name)
{
	if (name == NULL)
		return (HP_ARMED_NOT);
	if (strcmp(name, "job") == 0)
		return (HP_ARMED_JOB);
	if (strcmp(name, "step") == 0)
		return (HP_ARMED_STEP);
	return (HP_ARMED_NOT);
}

/* Who armed it, when the environment doesn't say. */
static enum hp_armed_by armed_by_place(enum hp_place place)
{
	if (place == HP_PLACE_ALLOCATOR || place == HP_PLACE_BATCH_STEP)
		return (HP_ARMED_JOB);
	return (HP_ARMED_STEP);
}

static bool is_off(const char *value)
{
	return (strcmp(value, "0") == 0);
}

struct hp_wish hp_policy_decide_wish(const struct hp_wish_input *in)
{
	struct hp_wish wish = { .auto_resume = "", .armed_by = HP_ARMED_NOT };
	enum hp_armed_by inherited = armed_from_name(in->env_armed_by);
	const char *env_value = in->env_value;
	char from_env[HP_VALUE_LEN] = "";
	bool submitting = (in->place == HP_PLACE_ALLOCATOR || in->place == HP_PLACE_SRUN);

	/*
	 * sbatch run inside an armed job makes a new job. That one was not asked for, so the wish
	 * of the job around it doesn't count. A value the user exported by hand has no armed_by.
	 */
	if (in->place == HP_PLACE_ALLOCATOR && in->inside_job && inherited != HP_ARMED_NOT) {
		env_value = NULL;
		inherited = HP_ARMED_NOT;
	}
	if (env_value != NULL && hp_policy_parse_attempts(env_value, from_env) != 0)
		env_value = NULL;

	/*
	 * At the command line the option is the newest word. In slurmstepd the environment is:
	 * srun has already written the option there, and a script may have changed it since.
	 */
	if (in->option != NULL && (submitting || env_value == NULL)) {
		(void)snprintf(wish.auto_resume, sizeof(wish.auto_resume), "%s", in->option);
		if (in->place == HP_PLACE_ALLOCATOR || (env_value != NULL && is_off(from_env)))
			inherited = HP_ARMED_NOT;
	} else if (env_value != NULL) {
		(void)snprintf(wish.auto_resume, sizeof(wish.auto_resume), "%s", from_env);
	} else if (in->default_on) {
		(void)snprintf(wish.auto_resume, sizeof(wish.auto_resume), "default");
		if (inherited == HP_ARMED_NOT && !submitting)
			inherited = HP_ARMED_JOB;
	} else {
		return (wish);
	}
	if (is_off(wish.auto_resume))
		return (wish);
	wish.armed_by = inherited != HP_ARMED_NOT ? inherited : armed_by_place(in->place);
	return (wish);
}

const char *hp_policy_armed_name(enum hp_armed_by armed_by)
{
	switch (armed_by) {
	case HP_ARMED_JOB:
		return ("job");
	case HP_ARMED_STEP:
		return ("step");
	case HP_ARMED_NOT:
	default:
		return (NULL);
	}
}

int64_t hp_policy_normalise_step(uint32_t step_id)
{
	/* Ids from 0xfffffff0 up are never ordinary steps (slurm.h, SLURM_MAX_NORMAL_STEP_ID). */
	if (step_id >= UINT32_C(0xfffffff0))
		return ((int64_t)step_id - (INT64_C(1) << 32));
	return ((int64_t)step_id);
}

bool hp_policy_is_env_key(const char *key, size_t len)
{
	static const char prefix[] = "HYPERPOD_";
	const size_t prefix_len = sizeof(prefix) - 1;

	if (len <= prefix_len || memcmp(key, prefix, prefix_len) != 0)
		return (false);
	for (size_t i = prefix_len; i < len; i++) {
		char c = key[i];

		if (!((c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_'))
			return (false);
	}
	return (true);
}

const char *hp_policy_foreign_option(char *const environment[])
{
	static const char prefix[] = "_SLURM_SPANK_OPTION_", own[] = "hyperpod_auto_resume";
	static const char suffix[] = "_auto_resume";

	for (size_t i = 0; environment != NULL && environment[i] != NULL; i++) {
		const char *name = environment[i];
		const char *equals = strchr(name, '=');
		size_t len = equals != NULL ? (size_t)(equals - name) : 0;

		if (len <= sizeof(prefix) - 1 + sizeof(suffix) - 1 ||
		    strncmp(name, prefix, sizeof(prefix) - 1) != 0 ||
		    strncmp(equals - (sizeof(suffix) - 1), suffix, sizeof(suffix) - 1) != 0)
			continue;
		name += sizeof(prefix) - 1;
		if ((size_t)(equals - name) == sizeof(own) - 1 &&
		    strncmp(name, own, sizeof(own) - 1) == 0)
			continue;
		return (equals + 1);
	}
	return (NULL);
}
