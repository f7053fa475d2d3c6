/* What slurmstepd does while the agent is ill, away, or not the agent at all. */
#include <fcntl.h>
#include <unistd.h>

#include "fake_agent.h"
#include "fake_spank.h"
#include "harness.h"

#include <slurm/slurm.h>

#define LIMIT_S 2.0 /* what a slurmstepd may lose to us, all hooks together */
#define TASKS 8

extern uid_t hp_test_agent_uid;

static char big_reply[200000];

/* A whole step of an armed job. Returns the seconds it took. */
static double run_step(char *socket_word)
{
	char *argv[] = { socket_word };
	double before;

	fake_reset(S_CTX_REMOTE);
	fake.step_id = SLURM_BATCH_SCRIPT;
	fake.restart_count = 2;
	fake_setenv("HYPERPOD_AUTO_RESUME", "3");
	fake_setenv("HYPERPOD_ARMED_BY", "job");
	before = fake_agent_clock();
	CHECK(fake_init(1, argv) == 0);
	CHECK(fake_post_opt() == 0);
	for (uint32_t rank = 0; rank < TASKS; rank++)
		CHECK(fake_task_start(rank) == 0);
	for (uint32_t rank = 0; rank < TASKS; rank++)
		CHECK(fake_task_exit(rank, 9) == 0);
	CHECK(fake_exit() == 0);
	return (fake_agent_clock() - before);
}

static double run_step_with(enum fake_agent_mode mode, const char *reply, size_t len)
{
	double took;

	hp_test_agent_uid = getuid();
	took = run_step(fake_agent_start(mode, reply, len));
	fake_agent_stop();
	return (took);
}

/* The environment of a job that had no help from an agent. */
static void check_alone(void)
{
	CHECK_STR(fake_getenv("HYPERPOD_ATTEMPT"), "3");
	CHECK_STR(fake_getenv("HYPERPOD_RESUME_FROM"), "");
	CHECK_STR(fake_getenv("HYPERPOD_A"), NULL);
}

static void without_an_agent_the_job_goes_on_and_the_log_says_so_once(void)
{
	hp_test_agent_uid = getuid();
	CHECK(run_step(fake_agent_nowhere()) < LIMIT_S);
	check_alone();
	CHECK(fake_log_count("can't be reached: No such file or directory") == 1);
	CHECK(fake_log_count("\n") == 1);
}

static void a_batch_step_learns_its_restart_count_when_the_task_starts(void)
{
	char *argv[] = { fake_agent_nowhere() };

	fake_reset(S_CTX_REMOTE);
	fake.step_id = SLURM_BATCH_SCRIPT;
	fake_setenv("HYPERPOD_AUTO_RESUME", "3");
	CHECK(fake_init(1, argv) == 0);
	CHECK(fake_post_opt() == 0);
	CHECK_STR(fake_getenv("HYPERPOD_ATTEMPT"), "1");
	fake_setenv("SLURM_RESTART_COUNT", "1");
	CHECK(fake_task_init() == 0);
	CHECK_STR(fake_getenv("HYPERPOD_ATTEMPT"), "2");
}

static void without_an_agent_what_the_job_has_already_is_kept(void)
{
	char *argv[] = { fake_agent_nowhere() };

	fake_reset(S_CTX_REMOTE);
	fake_setenv("HYPERPOD_AUTO_RESUME", "3");
	fake_setenv("HYPERPOD_ARMED_BY", "job");
	fake_setenv("HYPERPOD_ATTEMPT", "5");
	fake_setenv("HYPERPOD_RESUME_FROM", "/fsx/step_1");
	CHECK(fake_init(1, argv) == 0);
	CHECK(fake_post_opt() == 0);
	fake_setenv("SLURM_RESTART_COUNT", "1");
	CHECK(fake_task_init() == 0);
	CHECK_STR(fake_getenv("HYPERPOD_ATTEMPT"), "5");
	CHECK_STR(fake_getenv("HYPERPOD_RESUME_FROM"), "/fsx/step_1");
}

static void without_an_agent_a_job_that_is_off_is_untouched(void)
{
	char *argv[] = { fake_agent_nowhere() };

	fake_reset(S_CTX_REMOTE);
	fake_setenv("HYPERPOD_AUTO_RESUME", "0");
	CHECK(fake_init(1, argv) == 0);
	CHECK(fake_post_opt() == 0);
	CHECK(fake_task_init() == 0);
	CHECK_STR(fake_getenv("HYPERPOD_ATTEMPT"), NULL);
	CHECK_STR(fake_getenv("HYPERPOD_RESUME_FROM"), NULL);
	CHECK_STR(fake_getenv("HYPERPOD_ARMED_BY"), NULL);
}

static void a_hanging_agent_costs_little_and_still_gets_every_exit(void)
{
	CHECK(run_step_with(FAKE_AGENT_HANGS, NULL, 0) < LIMIT_S);
	check_alone();
	CHECK(fake_log_count("\n") == 1);
	CHECK(fake_agent_count("\"type\":\"env\"") == 1);
	CHECK(fake_agent_count("\"type\":\"task_start\"") == TASKS);
	CHECK(fake_agent_count("\"type\":\"task_exit\"") == TASKS);
	CHECK(fake_agent_count("\"type\":\"step_end\"") == 1);
}

static void an_agent_that_drips_costs_little(void)
{
	CHECK(run_step_with(FAKE_AGENT_DRIPS, NULL, 0) < LIMIT_S);
	check_alone();
}

static void an_agent_with_a_full_queue_costs_little(void)
{
	CHECK(run_step_with(FAKE_AGENT_DEAF, NULL, 0) < LIMIT_S);
	check_alone();
	CHECK(fake_log_count("can't be reached") == 1);
}

static void a_reply_without_end_is_refused(void)
{
	CHECK(run_step_with(FAKE_AGENT_FLOODS, NULL, 0) < LIMIT_S);
	check_alone();
	CHECK(fake_log_count("\n") == 1);
}

static void check_refused(const char *reply, size_t len)
{
	CHECK(run_step_with(FAKE_AGENT_CLOSES, reply, len) < LIMIT_S);
	check_alone();
}

static void a_reply_cut_short_is_refused_whole(void)
{
	static const char no_end[] = "HYPERPOD_A=1\n", no_newline[] = "HYPERPOD_A=1";
	static const char half_end[] = "HYPERPOD_A=1\n.";

	check_refused(no_end, sizeof(no_end) - 1);
	check_refused(no_newline, sizeof(no_newline) - 1);
	check_refused(half_end, sizeof(half_end) - 1);
	check_refused("", 0);
}

static void a_reply_that_makes_no_sense_sets_nothing(void)
{
	static const char nul[] = "HYPERPOD_A=1\n\0\n.\n", text[] = "HYPERPOD_A=1\nhello\n.\n";

	check_refused(nul, sizeof(nul) - 1);
	CHECK(fake_log_count("environment is ignored") == 1);
	check_refused(text, sizeof(text) - 1);
	memset(big_reply, 'x', sizeof(big_reply));
	memcpy(big_reply, "HYPERPOD_A=", 11);
	memcpy(big_reply + sizeof(big_reply) - 3, "\n.\n", 3);
	check_refused(big_reply, sizeof(big_reply));
}

static void the_longest_reply_allowed_is_taken(void)
{
	const size_t len = 65536;

	memset(big_reply, 'x', len);
	memcpy(big_reply, "HYPERPOD_A=", 11);
	memcpy(big_reply + len - 3, "\n.\n", 3);
	CHECK(run_step_with(FAKE_AGENT_CLOSES, big_reply, len) < LIMIT_S);
	CHECK(strlen(fake_getenv("HYPERPOD_A")) == len - 11 - 3);
}

static void somebody_else_behind_the_socket_is_not_believed(void)
{
	static const char reply[] = "HYPERPOD_A=1\n.\n";
	double took;

	hp_test_agent_uid = getuid() + 1;
	took = run_step(fake_agent_start(FAKE_AGENT_ANSWERS, reply, sizeof(reply) - 1));
	fake_agent_stop();
	CHECK(took < LIMIT_S);
	check_alone();
	CHECK(fake_log_count("Operation not permitted") == 1);
	for (int i = 0; fake_agent_request(i) != NULL; i++)
		CHECK_STR(fake_agent_request(i), "");
}

static void no_descriptor_is_left_open(void)
{
	static const char reply[] = ".\n";
	int before = open("/dev/null", O_RDONLY | O_CLOEXEC), after;

	(void)close(before);
	(void)run_step_with(FAKE_AGENT_ANSWERS, reply, sizeof(reply) - 1);
	hp_test_agent_uid = getuid() + 1;
	(void)run_step(fake_agent_start(FAKE_AGENT_ANSWERS, reply, sizeof(reply) - 1));
	fake_agent_stop();
	after = open("/dev/null", O_RDONLY | O_CLOEXEC);
	CHECK(after == before);
	(void)close(after);
}

int main(void)
{
	RUN(without_an_agent_the_job_goes_on_and_the_log_says_so_once);
	RUN(a_batch_step_learns_its_restart_count_when_the_task_starts);
	RUN(without_an_agent_what_the_job_has_already_is_kept);
	RUN(without_an_agent_a_job_that_is_off_is_untouched);
	RUN(a_hanging_agent_costs_little_and_still_gets_every_exit);
	RUN(an_agent_that_drips_costs_little);
	RUN(an_agent_with_a_full_queue_costs_little);
	RUN(a_reply_without_end_is_refused);
	RUN(a_reply_cut_short_is_refused_whole);
	RUN(a_reply_that_makes_no_sense_sets_nothing);
	RUN(the_longest_reply_allowed_is_taken);
	RUN(somebody_else_behind_the_socket_is_not_believed);
	RUN(no_descriptor_is_left_open);
	return (harness_end("test_agent"));
}
