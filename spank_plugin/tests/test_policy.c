#include "harness.h"
#include "policy.h"

static void attempts_are_read_as_a_number_or_the_default(void)
{
	static const struct {
		const char *text;
		const char *want; /* NULL: refused */
	} rows[] = {
		{ NULL, "default" }, { "", "default" }, { "default", "default" },
		{ "0", "0" }, { "1", "1" }, { "007", "7" }, { "1000", "1000" },
		{ "1001", NULL }, { "-1", NULL }, { "+1", NULL }, { " 1", NULL }, { "1 ", NULL },
		{ "1.5", NULL }, { "0x10", NULL }, { "1e3", NULL }, { "on", NULL },
		{ "Default", NULL }, { "99999999999999999999999", NULL }, { "3\n", NULL },
	};

	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		char out[HP_VALUE_LEN] = "untouched";
		int rv = hp_policy_parse_attempts(rows[i].text, out);

		CHECK(rv == (rows[i].want != NULL ? 0 : -1));
		CHECK_STR(out, rows[i].want != NULL ? rows[i].want : "untouched");
	}
}

static void a_checkpoint_directory_is_absolute_and_on_one_line(void)
{
	char longest[HP_PATH_LEN + 1];

	CHECK(hp_policy_is_checkpoint_dir("/fsx/run 1/\"x\"/\xc3\xa9\xff"));
	CHECK(!hp_policy_is_checkpoint_dir(NULL));
	CHECK(!hp_policy_is_checkpoint_dir(""));
	CHECK(!hp_policy_is_checkpoint_dir("fsx/run"));
	CHECK(!hp_policy_is_checkpoint_dir("./run"));
	CHECK(!hp_policy_is_checkpoint_dir("/fsx\n/run"));
	CHECK(!hp_policy_is_checkpoint_dir("/fsx\t"));
	CHECK(!hp_policy_is_checkpoint_dir("/fsx\x7f"));
	memset(longest, 'a', sizeof(longest));
	longest[0] = '/';
	longest[HP_PATH_LEN] = '\0';
	CHECK(!hp_policy_is_checkpoint_dir(longest));
	longest[HP_PATH_LEN - 1] = '\0';
	CHECK(hp_policy_is_checkpoint_dir(longest));
}

static void wrong_values_are_shown_short_and_on_one_line(void)
{
	char shown[HP_SHOWN_LEN], text[500];

	CHECK_STR(hp_policy_show("a\nb\x1b[2J", shown), "a?b?[2J");
	CHECK_STR(hp_policy_show(NULL, shown), "");
	memset(text, 'x', sizeof(text) - 1);
	text[sizeof(text) - 1] = '\0';
	CHECK(strlen(hp_policy_show(text, shown)) == HP_SHOWN_LEN - 1);
}

struct wish_row {
	const char *name;
	struct hp_wish_input in;
	const char *want;
	enum hp_armed_by want_by;
};

static void check_wishes(const struct wish_row *rows, size_t count)
{
	for (size_t i = 0; i < count; i++) {
		struct hp_wish wish = hp_policy_decide_wish(&rows[i].in);

		if (strcmp(wish.auto_resume, rows[i].want) != 0 ||
		    wish.armed_by != rows[i].want_by)
			printf("row: %s\n", rows[i].name);
		CHECK_STR(wish.auto_resume, rows[i].want);
		CHECK(wish.armed_by == rows[i].want_by);
	}
}

#define ALLOCATOR .place = HP_PLACE_ALLOCATOR
#define SRUN .place = HP_PLACE_SRUN, .inside_job = true
#define BATCH .place = HP_PLACE_BATCH_STEP
#define STEP .place = HP_PLACE_STEP
#define OPTION(v) .option = (v)
#define ENV(v, by) .env_value = (v), .env_armed_by = (by)
#define DEFAULT_ON .default_on = true

static void the_command_line_decides_who_armed_the_job(void)
{
	static const struct wish_row rows[] = {
		{ "nothing said", { ALLOCATOR }, "", HP_ARMED_NOT },
		{ "sbatch option", { ALLOCATOR, OPTION("3") }, "3", HP_ARMED_JOB },
		{ "sbatch off", { ALLOCATOR, OPTION("0") }, "0", HP_ARMED_NOT },
		{ "sbatch off beats default", { ALLOCATOR, OPTION("0"), DEFAULT_ON }, "0",
		  HP_ARMED_NOT },
		{ "cluster default", { ALLOCATOR, DEFAULT_ON }, "default", HP_ARMED_JOB },
		{ "exported by hand", { ALLOCATOR, ENV("5", NULL) }, "5", HP_ARMED_JOB },
		{ "exported nonsense", { ALLOCATOR, ENV("banana", NULL) }, "", HP_ARMED_NOT },
		{ "option beats export", { ALLOCATOR, OPTION("2"), ENV("5", NULL) }, "2",
		  HP_ARMED_JOB },
		{ "sbatch inside an armed job", { ALLOCATOR, .inside_job = true, ENV("5", "job") },
		  "", HP_ARMED_NOT },
		{ "sbatch inside an armed job, with option",
		  { ALLOCATOR, .inside_job = true, ENV("5", "step"), OPTION("1") }, "1",
		  HP_ARMED_JOB },
		{ "srun option in a plain job", { SRUN, OPTION("1") }, "1", HP_ARMED_STEP },
		{ "srun without a job", { .place = HP_PLACE_SRUN, OPTION("1") }, "1",
		  HP_ARMED_STEP },
		{ "srun in an armed job", { SRUN, ENV("3", "job") }, "3", HP_ARMED_JOB },
		{ "srun option in an armed job", { SRUN, ENV("3", "job"), OPTION("1") }, "1",
		  HP_ARMED_JOB },
		{ "srun option in a job that is off", { SRUN, ENV("0", "job"), OPTION("1") }, "1",
		  HP_ARMED_STEP },
		{ "srun off in an armed job", { SRUN, ENV("3", "job"), OPTION("0") }, "0",
		  HP_ARMED_NOT },
		{ "srun in a job that is off", { SRUN, ENV("0", NULL), DEFAULT_ON }, "0",
		  HP_ARMED_NOT },
		{ "srun, cluster default", { .place = HP_PLACE_SRUN, DEFAULT_ON }, "default",
		  HP_ARMED_STEP },
	};

	check_wishes(rows, sizeof(rows) / sizeof(rows[0]));
}

static void slurmstepd_trusts_the_environment_before_the_option(void)
{
	static const struct wish_row rows[] = {
		{ "nothing said", { STEP }, "", HP_ARMED_NOT },
		{ "batch step", { BATCH, ENV("3", "job"), OPTION("3") }, "3", HP_ARMED_JOB },
		{ "batch step of --export=NONE", { BATCH, OPTION("3") }, "3", HP_ARMED_JOB },
		{ "step of --export=NONE", { STEP, OPTION("3") }, "3", HP_ARMED_STEP },
		{ "step of an armed job", { STEP, ENV("3", "job") }, "3", HP_ARMED_JOB },
		{ "step armed by srun", { STEP, ENV("1", "step"), OPTION("1") }, "1",
		  HP_ARMED_STEP },
		{ "script exported off", { STEP, ENV("0", "job"), OPTION("3") }, "0",
		  HP_ARMED_NOT },
		{ "nonsense in the environment", { STEP, ENV("x", "job"), OPTION("3") }, "3",
		  HP_ARMED_JOB },
		{ "nonsense, no option", { STEP, ENV("x", "job") }, "", HP_ARMED_NOT },
		{ "cluster default, batch", { BATCH, DEFAULT_ON }, "default", HP_ARMED_JOB },
		{ "cluster default, step", { STEP, DEFAULT_ON }, "default", HP_ARMED_JOB },
		{ "cluster default refused", { BATCH, DEFAULT_ON, ENV("0", NULL) }, "0",
		  HP_ARMED_NOT },
		{ "armed by somebody unknown", { BATCH, ENV("3", "king") }, "3", HP_ARMED_JOB },
	};

	check_wishes(rows, sizeof(rows) / sizeof(rows[0]));
}

static void special_steps_become_small_negative_numbers(void)
{
	CHECK(hp_policy_normalise_step(0xfffffffbU) == HP_STEP_BATCH);
	CHECK(hp_policy_normalise_step(0xfffffffaU) == HP_STEP_INTERACTIVE);
	CHECK(hp_policy_normalise_step(0xfffffffcU) == HP_STEP_EXTERN);
	CHECK(hp_policy_normalise_step(0) == 0);
	CHECK(hp_policy_normalise_step(0xffffffefU) == INT64_C(0xffffffef));
}

static void only_our_own_keys_are_accepted(void)
{
	static const struct {
		const char *key;
		bool want;
	} rows[] = {
		{ "HYPERPOD_A", true }, { "HYPERPOD_RESUME_FROM", true }, { "HYPERPOD_9", true },
		{ "HYPERPOD_", false }, { "HYPERPOD", false }, { "LD_PRELOAD", false },
		{ "hyperpod_a", false }, { "HYPERPOD_a", false }, { "HYPERPOD_A B", false },
		{ " HYPERPOD_A", false }, { "XHYPERPOD_A", false }, { "", false },
		{ "HYPERPOD_A;B", false },
	};

	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++)
		CHECK(hp_policy_is_env_key(rows[i].key, strlen(rows[i].key)) == rows[i].want);
}

static void armed_by_has_a_name_or_none(void)
{
	CHECK_STR(hp_policy_armed_name(HP_ARMED_JOB), "job");
	CHECK_STR(hp_policy_armed_name(HP_ARMED_STEP), "step");
	CHECK_STR(hp_policy_armed_name(HP_ARMED_NOT), NULL);
}

int main(void)
{
	RUN(attempts_are_read_as_a_number_or_the_default);
	RUN(a_checkpoint_directory_is_absolute_and_on_one_line);
	RUN(wrong_values_are_shown_short_and_on_one_line);
	RUN(the_command_line_decides_who_armed_the_job);
	RUN(slurmstepd_trusts_the_environment_before_the_option);
	RUN(special_steps_become_small_negative_numbers);
	RUN(only_our_own_keys_are_accepted);
	RUN(armed_by_has_a_name_or_none);
	return (harness_end("test_policy"));
}
