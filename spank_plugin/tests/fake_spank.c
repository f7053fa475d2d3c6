#include "fake_spank.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <slurm/slurm.h>

#define VARIABLES_MAX 128
#define OPTIONS_MAX 8

uid_t hp_test_agent_uid;

struct spank_handle fake;

static struct {
	char name[64];
	char value[70000];
} variables[VARIABLES_MAX];
static size_t variable_count;
static struct spank_option options[OPTIONS_MAX];
static size_t option_count;
static char log_text[32768];

void fake_reset(enum spank_context context)
{
	fake = (struct spank_handle){ .context = context, .job_id = 42, .step_id = 0,
				      .array_task_id = NO_VAL, .uid = 1000 };
	variable_count = 0;
	option_count = 0;
	log_text[0] = '\0';
}

const char *fake_getenv(const char *name)
{
	for (size_t i = 0; i < variable_count; i++) {
		if (strcmp(variables[i].name, name) == 0)
			return (variables[i].value);
	}
	return (NULL);
}

void fake_setenv(const char *name, const char *value)
{
	size_t i = 0;

	while (i < variable_count && strcmp(variables[i].name, name) != 0)
		i++;
	if (i == VARIABLES_MAX)
		return;
	(void)snprintf(variables[i].name, sizeof(variables[i].name), "%s", name);
	(void)snprintf(variables[i].value, sizeof(variables[i].value), "%s", value);
	if (i == variable_count)
		variable_count++;
}

const struct spank_option *fake_find_option(const char *name)
{
	for (size_t i = 0; i < option_count; i++) {
		if (strcmp(options[i].name, name) == 0)
			return (&options[i]);
	}
	return (NULL);
}

int fake_option(const char *name, const char *value)
{
	const struct spank_option *option = fake_find_option(name);

	if (option == NULL)
		return (-99);
	return (option->cb(option->val, value, fake.context == S_CTX_REMOTE));
}

const char *fake_log(void)
{
	return (log_text);
}

int fake_log_count(const char *text)
{
	int count = 0;

	for (const char *at = log_text; (at = strstr(at, text)) != NULL; at += strlen(text))
		count++;
	return (count);
}

int fake_init(int ac, char *argv[])
{
	return (slurm_spank_init(&fake, ac, argv));
}

int fake_post_opt(void)
{
	return (slurm_spank_init_post_opt(&fake, 0, NULL));
}

static void enter_task(uint32_t rank)
{
	fake.in_task = true;
	fake.rank = rank;
	fake.local_id = (int)rank % 8;
	fake.pid = (pid_t)(5000 + rank);
}

int fake_task_init(void)
{
	return (slurm_spank_task_init(&fake, 0, NULL));
}

int fake_task_start(uint32_t rank)
{
	int rv;

	enter_task(rank);
	rv = slurm_spank_task_post_fork(&fake, 0, NULL);
	fake.in_task = false;
	return (rv);
}

int fake_task_exit(uint32_t rank, int status)
{
	int rv;

	enter_task(rank);
	fake.status = status;
	rv = slurm_spank_task_exit(&fake, 0, NULL);
	fake.in_task = false;
	return (rv);
}

int fake_exit(void)
{
	return (slurm_spank_exit(&fake, 0, NULL));
}

/* From here on: what Slurm offers to plugins. */

enum spank_context spank_context(void)
{
	return (fake.context);
}

const char *spank_strerror(spank_err_t err)
{
	static char text[32];

	(void)snprintf(text, sizeof(text), "spank error %d", (int)err);
	return (text);
}

spank_err_t spank_option_register(spank_t spank, struct spank_option *option)
{
	(void)spank;
	if (option->usage == NULL || option_count == OPTIONS_MAX)
		return (ESPANK_BAD_ARG);
	options[option_count++] = *option;
	return (ESPANK_SUCCESS);
}

spank_err_t spank_getenv(spank_t spank, const char *var, char *buf, int len)
{
	const char *value = fake_getenv(var);

	if (spank->context != S_CTX_REMOTE)
		return (ESPANK_NOT_REMOTE);
	if (value == NULL)
		return (ESPANK_ENV_NOEXIST);
	if (snprintf(buf, (size_t)len, "%s", value) >= len)
		return (ESPANK_NOSPACE);
	return (ESPANK_SUCCESS);
}

spank_err_t spank_setenv(spank_t spank, const char *var, const char *val, int overwrite)
{
	if (spank->context != S_CTX_REMOTE)
		return (ESPANK_NOT_REMOTE);
	if (fake_getenv(var) != NULL && !overwrite)
		return (ESPANK_ENV_EXISTS);
	fake_setenv(var, val);
	return (ESPANK_SUCCESS);
}

spank_err_t spank_unsetenv(spank_t spank, const char *var)
{
	if (spank->context != S_CTX_REMOTE)
		return (ESPANK_NOT_REMOTE);
	for (size_t i = 0; i < variable_count; i++) {
		if (strcmp(variables[i].name, var) == 0)
			variables[i] = variables[--variable_count];
	}
	return (ESPANK_SUCCESS);
}

static spank_err_t get_task_item(spank_t spank, spank_item_t item, va_list args)
{
	if (!spank->in_task)
		return (ESPANK_NOT_TASK);
	if (item == S_TASK_ID)
		*va_arg(args, int *) = spank->local_id;
	else if (item == S_TASK_GLOBAL_ID)
		*va_arg(args, uint32_t *) = spank->rank;
	else if (item == S_TASK_PID)
		*va_arg(args, pid_t *) = spank->pid;
	else
		*va_arg(args, int *) = spank->status;
	return (ESPANK_SUCCESS);
}

spank_err_t spank_get_item(spank_t spank, spank_item_t item, ...)
{
	spank_err_t rv = ESPANK_SUCCESS;
	va_list args;

	if (spank->context != S_CTX_REMOTE)
		return (ESPANK_NOT_REMOTE);
	va_start(args, item);
	switch (item) {
	case S_JOB_ID:
		*va_arg(args, uint32_t *) = spank->job_id;
		break;
	case S_JOB_STEPID:
		*va_arg(args, uint32_t *) = spank->step_id;
		break;
	case S_JOB_UID:
		*va_arg(args, uid_t *) = spank->uid;
		break;
	case S_JOB_ARRAY_ID:
		*va_arg(args, uint32_t *) = spank->array_job_id;
		break;
	case S_JOB_ARRAY_TASK_ID:
		*va_arg(args, uint32_t *) = spank->array_task_id;
		break;
	case S_SLURM_RESTART_COUNT:
		*va_arg(args, uint32_t *) = spank->restart_count;
		break;
	case S_TASK_ID:
	case S_TASK_GLOBAL_ID:
	case S_TASK_PID:
	case S_TASK_EXIT_STATUS:
		rv = get_task_item(spank, item, args);
		break;
	default:
		rv = ESPANK_BAD_ARG;
		break;
	}
	va_end(args);
	return (rv);
}

#define DEFINE_LOG(name)                                                                         \
	void name(const char *format, ...)                                                       \
	{                                                                                        \
		size_t len = strlen(log_text);                                                   \
		va_list args;                                                                    \
                                                                                                 \
		va_start(args, format);                                                          \
		(void)vsnprintf(log_text + len, sizeof(log_text) - len, format, args);           \
		va_end(args);                                                                    \
		len = strlen(log_text);                                                          \
		(void)snprintf(log_text + len, sizeof(log_text) - len, "\n");                    \
	}

DEFINE_LOG(slurm_error)
DEFINE_LOG(slurm_info)
DEFINE_LOG(slurm_spank_log)

/* Debug lines say too much for the tests that count lines. */
void slurm_debug(const char *format, ...)
{
	(void)format;
}
