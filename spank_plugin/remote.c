#include "remote.h"

#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "agent.h"
#include "job.h"
#include "log.h"
#include "message.h"
#include "options.h"
#include "policy.h"

/* One slurmstepd serves one step, so this is all there is to remember. */
static struct {
	bool active;	   /* a step that has reports; the extern step has none */
	bool counts_alone; /* nobody but us said which attempt this is */
	struct hp_agent agent;
	struct hp_report report; /* the step's part; a copy is completed for each message */
	struct hp_wish wish;
	char node[HP_NODE_LEN];
	char checkpoint_dir[HP_PATH_LEN];
} step;

static void set_env(spank_t spank, const char *name, const char *value)
{
	spank_err_t err = spank_setenv(spank, name, value, 1);

	if (err != ESPANK_SUCCESS)
		hp_info("can't set %s: %s", name, spank_strerror(err));
}

/* Settle what the job wants, and let its script and the srun inside see it too. */
static void settle_wish(spank_t spank, const struct hp_config *config)
{
	char value[HP_VALUE_LEN], armed_by[HP_VALUE_LEN];
	struct hp_wish_input in = {
		.place = step.report.step_id == HP_STEP_BATCH ? HP_PLACE_BATCH_STEP
							      : HP_PLACE_STEP,
		.default_on = config->default_on,
		.option = hp_options_auto_resume(),
		.env_value = hp_job_getenv(spank, HP_ENV_AUTO_RESUME, value, sizeof(value)),
		.env_armed_by = hp_job_getenv(spank, HP_ENV_ARMED_BY, armed_by, sizeof(armed_by)),
	};

	step.wish = hp_policy_decide_wish(&in);
	step.report.armed_by = hp_policy_armed_name(step.wish.armed_by);
	if (step.wish.auto_resume[0] != '\0') {
		step.report.auto_resume = step.wish.auto_resume;
		set_env(spank, HP_ENV_AUTO_RESUME, step.wish.auto_resume);
	}
	if (step.report.armed_by != NULL)
		set_env(spank, HP_ENV_ARMED_BY, step.report.armed_by);
}

static void settle_checkpoint_dir(spank_t spank)
{
	const char *path = hp_job_getenv(spank, HP_ENV_CHECKPOINT_DIR, step.checkpoint_dir,
					 sizeof(step.checkpoint_dir));

	if (path == NULL && hp_options_checkpoint_dir() != NULL) {
		(void)snprintf(step.checkpoint_dir, sizeof(step.checkpoint_dir), "%s",
			       hp_options_checkpoint_dir());
		path = step.checkpoint_dir;
		set_env(spank, HP_ENV_CHECKPOINT_DIR, path);
	}
	if (hp_policy_is_checkpoint_dir(path))
		step.report.checkpoint_dir = path;
}

static ssize_t send_report(struct hp_report *report, enum hp_phase phase, char *reply, size_t cap)
{
	static char message[HP_MESSAGE_MAX];
	ssize_t len;

	(void)clock_gettime(CLOCK_REALTIME, &report->time);
	len = hp_message_write(report, message, sizeof(message));
	if (len < 0) {
		hp_info("%s not reported: the message is too long", report->type);
		return (-1);
	}
	return (hp_agent_ask(&step.agent, phase, message, (size_t)len, reply, cap));
}

static void ask_env(spank_t spank)
{
	static char reply[HP_REPLY_MAX + 1];
	struct hp_env_line lines[HP_REPLY_LINES_MAX];
	struct hp_report report = step.report;
	int refused = 0, count;
	ssize_t len;

	report.type = "env";
	/* A job that isn't armed gets no variables: the agent is told of it, nobody waits. */
	len = send_report(&report, HP_PHASE_ENV,
			  step.wish.armed_by == HP_ARMED_NOT ? NULL : reply, HP_REPLY_MAX);
	if (len < 0)
		return;
	count = hp_message_split_env(reply, (size_t)len, lines, &refused);
	if (count < 0) {
		hp_info("the agent's environment is ignored: it is not at most %d lines of "
			"KEY=VALUE", HP_REPLY_LINES_MAX);
		return;
	}
	if (refused > 0)
		hp_info("variables of the agent ignored, not named HYPERPOD_*: %d", refused);
	for (int i = 0; i < count; i++)
		set_env(spank, lines[i].key, lines[i].value);
}

static void set_attempt(spank_t spank)
{
	char attempt[32];

	(void)snprintf(attempt, sizeof(attempt), "%lld",
		       (long long)hp_job_restart_count(spank) + 1);
	set_env(spank, HP_ENV_ATTEMPT, attempt);
}

/* A script needs one code path only, with an agent or without. */
static void fill_attempt(spank_t spank)
{
	char text[HP_VALUE_LEN];
	spank_err_t err;

	if (step.wish.armed_by == HP_ARMED_NOT)
		return;
	err = spank_setenv(spank, HP_ENV_RESUME_FROM, "", 0);
	if (err != ESPANK_SUCCESS && err != ESPANK_ENV_EXISTS)
		hp_info("can't set %s: %s", HP_ENV_RESUME_FROM, spank_strerror(err));
	step.counts_alone = hp_job_getenv(spank, HP_ENV_ATTEMPT, text, sizeof(text)) == NULL;
	if (step.counts_alone)
		set_attempt(spank);
}

/* The agent did not know whether this is a restart; whether its checkpoint counts is decided here. */
static void settle_resume(spank_t spank)
{
	char path[HP_PATH_LEN];
	spank_err_t err;

	if (hp_job_getenv(spank, HP_ENV_IF_RESTARTED, path, sizeof(path)) == NULL)
		return;
	err = spank_unsetenv(spank, HP_ENV_IF_RESTARTED);
	if (err != ESPANK_SUCCESS)
		hp_info("can't unset %s: %s", HP_ENV_IF_RESTARTED, spank_strerror(err));
	if (hp_job_restart_count(spank) == 0)
		return;
	set_env(spank, HP_ENV_RESUME_FROM, path);
	set_env(spank, HP_ENV_PREVIOUS_FAILURE, "unknown: the controller did not answer");
}

/* The first hook where a batch step can know its restart count; see hp_job_restart_count. */
void hp_remote_task_init(spank_t spank)
{
	if (!step.active)
		return;
	if (step.counts_alone)
		set_attempt(spank);
	settle_resume(spank);
}

void hp_remote_init_post_opt(spank_t spank, const struct hp_config *config)
{
	memset(&step, 0, sizeof(step));
	step.agent.config = config;
	if (hp_job_describe(spank, &step.report, step.node) != 0)
		return;
	if (step.report.step_id == HP_STEP_EXTERN)
		return;
	step.active = true;
	settle_wish(spank, config);
	settle_checkpoint_dir(spank);
	ask_env(spank);
	fill_attempt(spank);
}

static void report_task(spank_t spank, const char *type, enum hp_phase phase,
			const int *wait_status)
{
	struct hp_report report = step.report;
	char ack[256];

	if (!step.active)
		return;
	report.type = type;
	if (phase != HP_PHASE_END)
		hp_job_describe_task(spank, &report);
	if (wait_status != NULL)
		hp_message_set_status(&report, *wait_status);
	/* Only an exit is worth waiting for: it must not be lost, and it delays no start. */
	(void)send_report(&report, phase, phase == HP_PHASE_EXIT ? ack : NULL, sizeof(ack));
}

void hp_remote_task_start(spank_t spank)
{
	report_task(spank, "task_start", HP_PHASE_START, NULL);
}

void hp_remote_task_exit(spank_t spank)
{
	int status = 0;
	spank_err_t err = spank_get_item(spank, S_TASK_EXIT_STATUS, &status);

	if (err != ESPANK_SUCCESS) {
		hp_info("a task's exit status is unknown: %s", spank_strerror(err));
		return;
	}
	report_task(spank, "task_exit", HP_PHASE_EXIT, &status);
}

void hp_remote_exit(spank_t spank)
{
	report_task(spank, "step_end", HP_PHASE_END, NULL);
	step.active = false;
}
