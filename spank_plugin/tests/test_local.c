/* What sbatch, salloc and srun do: options in, environment out. */
#include "fake_spank.h"
#include "harness.h"
#include "policy.h"

#define INHERITED "_SLURM_SPANK_OPTION_hyperpod_auto_resume"

static void start(enum spank_context context, const char *word)
{
	char text[64];
	char *argv[] = { text };

	(void)snprintf(text, sizeof(text), "%s", word != NULL ? word : "");
	fake_reset(context);
	CHECK(fake_init(word != NULL ? 1 : 0, argv) == 0);
}

static void clear_environment(void)
{
	static const char *const names[] = {
		HP_ENV_AUTO_RESUME, HP_ENV_ARMED_BY, HP_ENV_CHECKPOINT_DIR, HP_ENV_ATTEMPT,
		HP_ENV_RESUME_FROM, HP_ENV_PREVIOUS_FAILURE, HP_ENV_PEER_LOST, "SLURM_JOB_ID",
		INHERITED, "SLURM_SPANK_" INHERITED, "SLURM_RESTART_COUNT",
	};

	for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
		(void)unsetenv(names[i]);
}

static void options_are_offered_in_every_context(void)
{
	static const enum spank_context contexts[] = { S_CTX_ALLOCATOR, S_CTX_LOCAL,
						       S_CTX_REMOTE };

	for (size_t i = 0; i < sizeof(contexts) / sizeof(contexts[0]); i++) {
		start(contexts[i], NULL);
		CHECK(fake_find_option("auto-resume") != NULL);
		CHECK(fake_find_option("auto-resume")->has_arg == 2);
		CHECK(fake_find_option("checkpoint-dir") != NULL);
		CHECK(fake_find_option("checkpoint-dir")->has_arg == 1);
	}
	start(S_CTX_SLURMD, NULL);
	CHECK(fake_find_option("auto-resume") == NULL);
}

static void sbatch_arms_the_job(void)
{
	clear_environment();
	start(S_CTX_ALLOCATOR, NULL);
	CHECK(fake_option("auto-resume", "3") == 0);
	CHECK(fake_option("checkpoint-dir", "/fsx/run") == 0);
	CHECK(fake_post_opt() == 0);
	CHECK_STR(getenv(HP_ENV_AUTO_RESUME), "3");
	CHECK_STR(getenv(HP_ENV_ARMED_BY), "job");
	CHECK_STR(getenv(HP_ENV_CHECKPOINT_DIR), "/fsx/run");
	CHECK_STR(fake_log(), "");
}

static void a_bare_option_means_the_clusters_default(void)
{
	clear_environment();
	start(S_CTX_ALLOCATOR, NULL);
	CHECK(fake_option("auto-resume", NULL) == 0);
	CHECK(fake_post_opt() == 0);
	CHECK_STR(getenv(HP_ENV_AUTO_RESUME), "default");
	start(S_CTX_ALLOCATOR, NULL);
	CHECK(fake_option("auto-resume", "") == 0);
	CHECK(fake_post_opt() == 0);
	CHECK_STR(getenv(HP_ENV_AUTO_RESUME), "default");
}

static void a_bare_option_reaches_the_srun_inside_as_slurm_writes_it(void)
{
	clear_environment();
	(void)setenv("SLURM_JOB_ID", "42", 1);
	(void)setenv(HP_ENV_AUTO_RESUME, "default", 1);
	(void)setenv(HP_ENV_ARMED_BY, "job", 1);
	start(S_CTX_LOCAL, NULL);
	CHECK(fake_option("auto-resume", "(null)") == 0);
	CHECK(fake_post_opt() == 0);
	CHECK_STR(getenv(HP_ENV_AUTO_RESUME), "default");
	CHECK_STR(getenv(HP_ENV_ARMED_BY), "job");
	CHECK_STR(fake_log(), "");
	clear_environment();
}

static void a_job_that_asks_for_nothing_gets_nothing(void)
{
	clear_environment();
	start(S_CTX_ALLOCATOR, NULL);
	CHECK(fake_post_opt() == 0);
	CHECK_STR(getenv(HP_ENV_AUTO_RESUME), NULL);
	CHECK_STR(getenv(HP_ENV_ARMED_BY), NULL);
	CHECK_STR(getenv(HP_ENV_CHECKPOINT_DIR), NULL);
}

static void wrong_values_are_refused_with_one_clear_line(void)
{
	clear_environment();
	start(S_CTX_ALLOCATOR, NULL);
	CHECK(fake_option("auto-resume", "many") != 0);
	CHECK(fake_log_count("\n") == 1);
	CHECK(strstr(fake_log(), "--auto-resume=many: give a number of attempts from 0 to 1000"));
	CHECK(fake_option("auto-resume", "1001") != 0);
	CHECK(fake_option("auto-resume", "a\nb") != 0);
	CHECK(fake_log_count("\n") == 3);
	CHECK(fake_option("checkpoint-dir", "relative") != 0);
	CHECK(strstr(fake_log(), "--checkpoint-dir=relative: give an absolute path"));
	CHECK(fake_option("checkpoint-dir", "/a\nb") != 0);
	CHECK(fake_option("checkpoint-dir", "") != 0);
	CHECK(fake_log_count("\n") == 6);
	CHECK(fake_post_opt() == 0);
	CHECK_STR(getenv(HP_ENV_AUTO_RESUME), NULL);
	CHECK_STR(getenv(HP_ENV_CHECKPOINT_DIR), NULL);
}

static void the_last_value_at_the_command_line_wins(void)
{
	clear_environment();
	start(S_CTX_ALLOCATOR, NULL);
	CHECK(fake_option("auto-resume", "2") == 0); /* #SBATCH */
	CHECK(fake_option("auto-resume", "2") == 0);
	CHECK(fake_option("auto-resume", "0") == 0); /* sbatch --auto-resume=0 script */
	CHECK(fake_option("checkpoint-dir", "/a") == 0);
	CHECK(fake_option("checkpoint-dir", "/b") == 0);
	CHECK(fake_post_opt() == 0);
	CHECK_STR(getenv(HP_ENV_AUTO_RESUME), "0");
	CHECK_STR(getenv(HP_ENV_ARMED_BY), NULL);
	CHECK_STR(getenv(HP_ENV_CHECKPOINT_DIR), "/b");
}

static void srun_arms_by_step_only_when_the_job_is_not_armed(void)
{
	clear_environment();
	(void)setenv("SLURM_JOB_ID", "42", 1);
	start(S_CTX_LOCAL, NULL);
	CHECK(fake_option("auto-resume", "1") == 0);
	CHECK(fake_post_opt() == 0);
	CHECK_STR(getenv(HP_ENV_AUTO_RESUME), "1");
	CHECK_STR(getenv(HP_ENV_ARMED_BY), "step");

	(void)setenv(HP_ENV_AUTO_RESUME, "4", 1);
	(void)setenv(HP_ENV_ARMED_BY, "job", 1);
	(void)setenv(HP_ENV_CHECKPOINT_DIR, "/outer", 1);
	(void)setenv(HP_ENV_ATTEMPT, "3", 1);
	(void)setenv(INHERITED, "4", 1);
	start(S_CTX_LOCAL, NULL);
	CHECK(fake_post_opt() == 0);
	CHECK_STR(getenv(INHERITED), "4");
	CHECK_STR(getenv(HP_ENV_AUTO_RESUME), "4");
	CHECK_STR(getenv(HP_ENV_ARMED_BY), "job");
	CHECK_STR(getenv(HP_ENV_CHECKPOINT_DIR), "/outer");
	CHECK_STR(getenv(HP_ENV_ATTEMPT), "3");
	clear_environment();
}

static void a_job_submitted_from_inside_an_armed_job_starts_clean(void)
{
	clear_environment();
	(void)setenv("SLURM_JOB_ID", "42", 1);
	(void)setenv(HP_ENV_AUTO_RESUME, "4", 1);
	(void)setenv(HP_ENV_ARMED_BY, "job", 1);
	(void)setenv(HP_ENV_ATTEMPT, "3", 1);
	(void)setenv(HP_ENV_RESUME_FROM, "/fsx/step_9", 1);
	(void)setenv(HP_ENV_PREVIOUS_FAILURE, "x", 1);
	(void)setenv(HP_ENV_PEER_LOST, "/run/x", 1);
	(void)setenv("SLURM_RESTART_COUNT", "2", 1);
	(void)setenv(INHERITED, "4", 1);
	(void)setenv("SLURM_SPANK_" INHERITED, "4", 1);
	start(S_CTX_ALLOCATOR, NULL);
	CHECK_STR(getenv(INHERITED), NULL);
	CHECK_STR(getenv("SLURM_SPANK_" INHERITED), NULL);
	CHECK(fake_post_opt() == 0);
	CHECK_STR(getenv(HP_ENV_AUTO_RESUME), NULL);
	CHECK_STR(getenv(HP_ENV_ARMED_BY), NULL);
	CHECK_STR(getenv(HP_ENV_ATTEMPT), NULL);
	CHECK_STR(getenv(HP_ENV_RESUME_FROM), NULL);
	CHECK_STR(getenv(HP_ENV_PREVIOUS_FAILURE), NULL);
	CHECK_STR(getenv(HP_ENV_PEER_LOST), NULL);
	CHECK_STR(getenv("SLURM_RESTART_COUNT"), "2");
	start(S_CTX_ALLOCATOR, NULL);
	CHECK(fake_option("auto-resume", "1") == 0);
	CHECK(fake_post_opt() == 0);
	CHECK_STR(getenv("SLURM_RESTART_COUNT"), NULL);
	clear_environment();
}

static void people_who_submit_are_not_told_of_a_wrong_plugstack(void)
{
	clear_environment();
	start(S_CTX_ALLOCATOR, "nonsense=1");
	CHECK_STR(fake_log(), "");
}

static void the_clusters_default_arms_and_zero_refuses_it(void)
{
	clear_environment();
	start(S_CTX_ALLOCATOR, "default=on");
	CHECK(fake_post_opt() == 0);
	CHECK_STR(getenv(HP_ENV_AUTO_RESUME), "default");
	CHECK_STR(getenv(HP_ENV_ARMED_BY), "job");
	clear_environment();
	start(S_CTX_ALLOCATOR, "default=on");
	CHECK(fake_option("auto-resume", "0") == 0);
	CHECK(fake_post_opt() == 0);
	CHECK_STR(getenv(HP_ENV_AUTO_RESUME), "0");
	CHECK_STR(getenv(HP_ENV_ARMED_BY), NULL);
	clear_environment();
}

static void nonsense_exported_by_hand_is_named_and_dropped(void)
{
	clear_environment();
	(void)setenv(HP_ENV_AUTO_RESUME, "banana", 1);
	start(S_CTX_ALLOCATOR, NULL);
	CHECK(fake_post_opt() == 0);
	CHECK_STR(getenv(HP_ENV_AUTO_RESUME), NULL);
	CHECK(fake_log_count("HYPERPOD_AUTO_RESUME=banana") == 1);
	clear_environment();
}

static void another_plugins_option_arms_the_job_too(void)
{
	static const struct {
		const char *name, *value, *expected;
	} cases[] = {
		{ "_SLURM_SPANK_OPTION_sagemaker_auto_resume", "1", "1" },
		{ "_SLURM_SPANK_OPTION_sagemaker_auto_resume", "4", "4" },
		{ "_SLURM_SPANK_OPTION_sagemaker_auto_resume", "", "default" },
		{ "_SLURM_SPANK_OPTION_sagemaker_auto_resume", "0", "0" },
		{ "_SLURM_SPANK_OPTION_sagemaker_auto_resume", "yes", NULL },
		{ "_SLURM_SPANK_OPTION_sagemaker_auto_resume_x", "1", NULL },
		{ "SPANK_OPTION_sagemaker_auto_resume", "1", NULL },
		{ "_SLURM_SPANK_OPTION_hyperpod_auto_resume", "1", NULL },
	};

	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		clear_environment();
		start(S_CTX_LOCAL, NULL);
		(void)setenv(cases[i].name, cases[i].value, 1);
		CHECK(fake_post_opt() == 0);
		CHECK_STR(getenv(HP_ENV_AUTO_RESUME), cases[i].expected);
		(void)unsetenv(cases[i].name);
	}
	clear_environment();
}

static void our_own_option_is_stronger_than_another_plugins(void)
{
	clear_environment();
	start(S_CTX_ALLOCATOR, NULL);
	CHECK(fake_option("auto-resume", "3") == 0);
	(void)setenv("_SLURM_SPANK_OPTION_sagemaker_auto_resume", "1", 1);
	CHECK(fake_post_opt() == 0);
	CHECK_STR(getenv(HP_ENV_AUTO_RESUME), "3");
	(void)unsetenv("_SLURM_SPANK_OPTION_sagemaker_auto_resume");
	clear_environment();
}

static void an_option_that_is_theirs_is_not_registered(void)
{
	char theirs[] = "option=theirs";
	char *argv[] = { theirs };

	clear_environment();
	fake_reset(S_CTX_LOCAL);
	CHECK(fake_init(1, argv) == 0);
	CHECK(fake_find_option("auto-resume") == NULL);
	CHECK(fake_find_option("checkpoint-dir") != NULL);
	CHECK_STR(fake_log(), "");
}

static void task_hooks_outside_slurmstepd_do_nothing(void)
{
	start(S_CTX_LOCAL, NULL);
	CHECK(fake_task_init() == 0);
	CHECK(fake_task_start(0) == 0);
	CHECK(fake_task_exit(0, 0) == 0);
	CHECK(fake_exit() == 0);
	start(S_CTX_JOB_SCRIPT, NULL);
	CHECK(fake_post_opt() == 0);
	CHECK_STR(fake_log(), "");
}

int main(void)
{
	RUN(options_are_offered_in_every_context);
	RUN(sbatch_arms_the_job);
	RUN(a_bare_option_means_the_clusters_default);
	RUN(a_bare_option_reaches_the_srun_inside_as_slurm_writes_it);
	RUN(a_job_that_asks_for_nothing_gets_nothing);
	RUN(wrong_values_are_refused_with_one_clear_line);
	RUN(the_last_value_at_the_command_line_wins);
	RUN(srun_arms_by_step_only_when_the_job_is_not_armed);
	RUN(a_job_submitted_from_inside_an_armed_job_starts_clean);
	RUN(people_who_submit_are_not_told_of_a_wrong_plugstack);
	RUN(the_clusters_default_arms_and_zero_refuses_it);
	RUN(nonsense_exported_by_hand_is_named_and_dropped);
	RUN(another_plugins_option_arms_the_job_too);
	RUN(our_own_option_is_stronger_than_another_plugins);
	RUN(an_option_that_is_theirs_is_not_registered);
	RUN(task_hooks_outside_slurmstepd_do_nothing);
	return (harness_end("test_local"));
}
