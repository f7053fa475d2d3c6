/* What slurmstepd does while the agent is well. */
#include <unistd.h>

#include "fake_agent.h"
#include "fake_spank.h"
#include "harness.h"

#include <slurm/slurm.h>

#define REPLY                                                                                    \
	"HYPERPOD_ATTEMPT=2\nHYPERPOD_RESUME_FROM=/fsx/step_900\nPATH=/evil\n"                     \
	"HYPERPOD_PREVIOUS_FAILURE=node worker-2 lost power\n.\n"

extern uid_t hp_test_agent_uid;

static void start(const char *reply)
{
	char *argv[] = { fake_agent_start(FAKE_AGENT_ANSWERS, reply, strlen(reply)) };

	hp_test_agent_uid = getuid();
	CHECK(fake_init(1, argv) == 0);
}

static void a_batch_step_gets_its_environment_and_reports(void)
{
	fake_reset(S_CTX_REMOTE);
	fake.step_id = SLURM_BATCH_SCRIPT;
	fake.restart_count = 1;
	fake_setenv("HYPERPOD_AUTO_RESUME", "3");
	fake_setenv("HYPERPOD_ARMED_BY", "job");
	fake_setenv("HYPERPOD_CHECKPOINT_DIR", "/fsx/run");
	fake_setenv("HYPERPOD_RESUME_FROM", "/stale");
	start(REPLY);
	CHECK(fake_post_opt() == 0);
	fake_setenv("SLURM_RESTART_COUNT", "7");
	CHECK(fake_task_init() == 0); /* what the agent said stays */
	CHECK(fake_task_start(0) == 0);
	CHECK(fake_task_exit(0, 0) == 0);
	CHECK(fake_exit() == 0);
	fake_agent_stop();
	CHECK_STR(fake_getenv("HYPERPOD_ATTEMPT"), "2");
	CHECK_STR(fake_getenv("HYPERPOD_RESUME_FROM"), "/fsx/step_900");
	CHECK_STR(fake_getenv("HYPERPOD_PREVIOUS_FAILURE"), "node worker-2 lost power");
	CHECK_STR(fake_getenv("PATH"), NULL);
	CHECK(fake_log_count("not named HYPERPOD_*: 1") == 1);
	CHECK(strstr(fake_agent_request(0), "\"type\":\"env\",\"job_id\":42,") != NULL);
	CHECK(strstr(fake_agent_request(0), "\"step_id\":-5,\"restart_count\":1,\"uid\":1000"));
	CHECK(strstr(fake_agent_request(0), "\"rank\":-1,\"local_id\":-1,\"pid\":0"));
	CHECK(strstr(fake_agent_request(0), "\"auto_resume\":\"3\",\"checkpoint_dir\":\"/fsx/run\","
					    "\"armed_by\":\"job\"}"));
	CHECK(strstr(fake_agent_request(1), "\"type\":\"task_start\"") != NULL);
	CHECK(strstr(fake_agent_request(2), "\"type\":\"task_exit\"") != NULL);
	CHECK(strstr(fake_agent_request(3), "\"type\":\"step_end\"") != NULL);
	CHECK(fake_agent_request(4) == NULL);
}

static void every_task_reports_its_rank_and_how_it_ended(void)
{
	fake_reset(S_CTX_REMOTE);
	fake.step_id = 7;
	start(".\n");
	CHECK(fake_post_opt() == 0);
	for (uint32_t rank = 8; rank < 11; rank++)
		CHECK(fake_task_start(rank) == 0);
	CHECK(fake_task_exit(8, 0) == 0);
	CHECK(fake_task_exit(9, 3 << 8) == 0);
	CHECK(fake_task_exit(10, 9) == 0);
	CHECK(fake_exit() == 0);
	fake_agent_stop();
	CHECK(fake_agent_count("\"type\":\"task_start\"") == 3);
	CHECK(fake_agent_count("\"type\":\"task_exit\"") == 3);
	CHECK(strstr(fake_agent_request(1), "\"exit_code\":null,\"signal\":null"));
	CHECK(strstr(fake_agent_request(4), "\"rank\":8,\"local_id\":0,\"pid\":5008"));
	CHECK(strstr(fake_agent_request(4), "\"status\":0,\"exit_code\":0,\"signal\":null"));
	CHECK(strstr(fake_agent_request(5), "\"status\":768,\"exit_code\":3,\"signal\":null"));
	CHECK(strstr(fake_agent_request(6), "\"status\":9,\"exit_code\":null,\"signal\":9"));
	CHECK(strstr(fake_agent_request(6), "\"step_id\":7"));
	CHECK(fake_agent_count("\"auto_resume\":null,\"checkpoint_dir\":null,\"armed_by\":null") ==
	      8);
	CHECK_STR(fake_getenv("HYPERPOD_ATTEMPT"), NULL);
	CHECK_STR(fake_getenv("HYPERPOD_AUTO_RESUME"), NULL);
	CHECK_STR(fake_log(), "");
}

static const char *only_request(void)
{
	start(".\n");
	CHECK(fake_post_opt() == 0);
	fake_agent_stop();
	return (fake_agent_find("\"type\":\"env\""));
}

static void array_ids_are_null_unless_the_job_is_an_array(void)
{
	fake_reset(S_CTX_REMOTE);
	fake.step_id = SLURM_BATCH_SCRIPT;
	fake.array_job_id = 40;
	fake.array_task_id = 2;
	CHECK(strstr(only_request(), "\"array_job_id\":40,\"array_task_id\":2,"));

	fake_reset(S_CTX_REMOTE);
	fake.array_job_id = 0;
	fake.array_task_id = NO_VAL;
	CHECK(strstr(only_request(), "\"array_job_id\":null,\"array_task_id\":null,"));

	fake_reset(S_CTX_REMOTE); /* as in a step started by srun: only the variables tell */
	fake.array_job_id = 42;
	fake_setenv("SLURM_ARRAY_JOB_ID", "40");
	fake_setenv("SLURM_ARRAY_TASK_ID", "0");
	CHECK(strstr(only_request(), "\"array_job_id\":40,\"array_task_id\":0,"));

	fake_reset(S_CTX_REMOTE); /* left over from the job that submitted this one */
	fake.step_id = SLURM_BATCH_SCRIPT;
	fake_setenv("SLURM_ARRAY_JOB_ID", "30");
	fake_setenv("SLURM_ARRAY_TASK_ID", "1");
	CHECK(strstr(only_request(), "\"array_job_id\":null,\"array_task_id\":null,"));
}

static void a_het_component_is_found_by_its_job_id(void)
{
	fake_reset(S_CTX_REMOTE);
	CHECK(strstr(only_request(), "\"het_job_id\":null,\"het_offset\":null,"));

	fake_reset(S_CTX_REMOTE);
	fake_setenv("SLURM_HET_SIZE", "3");
	fake_setenv("SLURM_JOB_ID_HET_GROUP_0", "40");
	fake_setenv("SLURM_JOB_ID_HET_GROUP_1", "41");
	fake_setenv("SLURM_JOB_ID_HET_GROUP_2", "42");
	CHECK(strstr(only_request(), "\"het_job_id\":40,\"het_offset\":2,"));

	fake_reset(S_CTX_REMOTE);
	fake_setenv("SLURM_HET_JOB_ID", "41");
	fake_setenv("SLURM_HET_JOB_OFFSET", "1");
	CHECK(strstr(only_request(), "\"het_job_id\":41,\"het_offset\":1,"));

	fake_reset(S_CTX_REMOTE);
	fake_setenv("SLURM_HET_SIZE", "4000000000");
	CHECK(strstr(only_request(), "\"het_job_id\":null,\"het_offset\":null,"));
}

static void the_restart_count_is_the_larger_of_item_and_variable(void)
{
	fake_reset(S_CTX_REMOTE);
	fake_setenv("SLURM_RESTART_COUNT", "4");
	CHECK(strstr(only_request(), "\"restart_count\":4,"));
	fake_reset(S_CTX_REMOTE);
	fake.step_id = SLURM_BATCH_SCRIPT;
	fake.restart_count = 5;
	fake_setenv("SLURM_RESTART_COUNT", "4");
	CHECK(strstr(only_request(), "\"restart_count\":5,"));
	fake_reset(S_CTX_REMOTE);
	fake.restart_count = NO_VAL;
	CHECK(strstr(only_request(), "\"restart_count\":0,"));
	fake_reset(S_CTX_REMOTE);
	fake_setenv("SLURM_RESTART_COUNT", "-4");
	CHECK(strstr(only_request(), "\"restart_count\":0,"));
}

static void the_extern_step_is_left_alone(void)
{
	fake_reset(S_CTX_REMOTE);
	fake.step_id = SLURM_EXTERN_CONT;
	fake_setenv("HYPERPOD_AUTO_RESUME", "3");
	start(REPLY);
	CHECK(fake_post_opt() == 0);
	CHECK(fake_task_start(0) == 0);
	CHECK(fake_task_exit(0, 0) == 0);
	CHECK(fake_exit() == 0);
	fake_agent_stop();
	CHECK(fake_agent_request(0) == NULL);
	CHECK_STR(fake_getenv("HYPERPOD_ATTEMPT"), NULL);
}

static void an_interactive_step_is_an_ordinary_one(void)
{
	fake_reset(S_CTX_REMOTE);
	fake.step_id = SLURM_INTERACTIVE_STEP;
	CHECK(strstr(only_request(), "\"step_id\":-6,"));
}

static void options_passed_on_by_slurm_arm_a_job_without_environment(void)
{
	fake_reset(S_CTX_REMOTE);
	fake.step_id = SLURM_BATCH_SCRIPT;
	start(".\n");
	CHECK(fake_option("auto-resume", "3") == 0);
	CHECK(fake_option("auto-resume", "9") == 0); /* from the environment: older */
	CHECK(fake_option("auto-resume", "junk") == 0);
	CHECK(fake_option("checkpoint-dir", "/fsx/run") == 0);
	CHECK(fake_option("checkpoint-dir", "relative") == 0);
	CHECK(fake_post_opt() == 0);
	fake_agent_stop();
	CHECK_STR(fake_getenv("HYPERPOD_AUTO_RESUME"), "3");
	CHECK_STR(fake_getenv("HYPERPOD_ARMED_BY"), "job");
	CHECK_STR(fake_getenv("HYPERPOD_CHECKPOINT_DIR"), "/fsx/run");
	CHECK_STR(fake_getenv("HYPERPOD_ATTEMPT"), "1");
	CHECK_STR(fake_getenv("HYPERPOD_RESUME_FROM"), "");
	CHECK(fake_agent_count("\"auto_resume\":\"3\",\"checkpoint_dir\":\"/fsx/run\","
			       "\"armed_by\":\"job\"") == 1);
}

static void start_batch_with_a_lost_controller(const char *restarts)
{
	fake_reset(S_CTX_REMOTE);
	fake.step_id = SLURM_BATCH_SCRIPT;
	fake_setenv("HYPERPOD_AUTO_RESUME", "3");
	start("HYPERPOD_CHECKPOINT_DIR=/fsx/run\nHYPERPOD_IF_RESTARTED=/fsx/run/step_90\n.\n");
	CHECK(fake_post_opt() == 0);
	fake_agent_stop();
	CHECK_STR(fake_getenv("HYPERPOD_RESUME_FROM"), "");
	if (restarts != NULL)
		fake_setenv("SLURM_RESTART_COUNT", restarts);
	CHECK(fake_task_init() == 0);
	CHECK_STR(fake_getenv("HYPERPOD_IF_RESTARTED"), NULL);
}

static void a_restarted_script_resumes_although_only_the_task_knows_that_it_is_one(void)
{
	start_batch_with_a_lost_controller("2");
	CHECK_STR(fake_getenv("HYPERPOD_ATTEMPT"), "3");
	CHECK_STR(fake_getenv("HYPERPOD_RESUME_FROM"), "/fsx/run/step_90");
	CHECK_STR(fake_getenv("HYPERPOD_PREVIOUS_FAILURE"), "unknown: the controller did not answer");
}

static void a_first_script_does_not_resume_from_what_lies_in_its_directory(void)
{
	start_batch_with_a_lost_controller(NULL);
	CHECK_STR(fake_getenv("HYPERPOD_ATTEMPT"), "1");
	CHECK_STR(fake_getenv("HYPERPOD_RESUME_FROM"), "");
	CHECK_STR(fake_getenv("HYPERPOD_PREVIOUS_FAILURE"), NULL);
}

static void junk_passed_on_by_slurm_never_fails_a_step(void)
{
	fake_reset(S_CTX_REMOTE);
	start(".\n");
	CHECK(fake_option("auto-resume", "junk") == 0);
	CHECK(fake_option("checkpoint-dir", NULL) == 0);
	CHECK(fake_post_opt() == 0);
	fake_agent_stop();
	CHECK(fake_agent_count("\"auto_resume\":null,\"checkpoint_dir\":null") == 1);
}

static void the_clusters_default_arms_in_slurmstepd_too(void)
{
	char word[] = "default=on";
	char *argv[] = { word, fake_agent_nowhere() };

	fake_reset(S_CTX_REMOTE);
	fake.step_id = SLURM_BATCH_SCRIPT;
	CHECK(fake_init(2, argv) == 0);
	CHECK(fake_post_opt() == 0);
	CHECK_STR(fake_getenv("HYPERPOD_AUTO_RESUME"), "default");
	CHECK_STR(fake_getenv("HYPERPOD_ATTEMPT"), "1");
}

int main(void)
{
	RUN(a_batch_step_gets_its_environment_and_reports);
	RUN(every_task_reports_its_rank_and_how_it_ended);
	RUN(array_ids_are_null_unless_the_job_is_an_array);
	RUN(a_het_component_is_found_by_its_job_id);
	RUN(the_restart_count_is_the_larger_of_item_and_variable);
	RUN(the_extern_step_is_left_alone);
	RUN(an_interactive_step_is_an_ordinary_one);
	RUN(options_passed_on_by_slurm_arm_a_job_without_environment);
	RUN(a_restarted_script_resumes_although_only_the_task_knows_that_it_is_one);
	RUN(a_first_script_does_not_resume_from_what_lies_in_its_directory);
	RUN(junk_passed_on_by_slurm_never_fails_a_step);
	RUN(the_clusters_default_arms_in_slurmstepd_too);
	return (harness_end("test_remote"));
}
