#include "harness.h"
#include "message.h"

static struct hp_report sample(void)
{
	return ((struct hp_report){
		.type = "task_exit", .job_id = 42, .array_job_id = 40, .array_task_id = 2,
		.het_job_id = HP_NULL, .het_offset = HP_NULL, .step_id = -5, .restart_count = 1,
		.uid = 1000, .node = "worker-1", .rank = 3, .local_id = 1, .pid = 4711,
		.time = { .tv_sec = 1700000000, .tv_nsec = 5000000 }, .status = 0,
		.exit_code = 0, .signal = HP_NULL, .auto_resume = "default",
		.checkpoint_dir = NULL, .armed_by = "job" });
}

static void a_request_is_one_line_of_json_with_every_field(void)
{
	struct hp_report report = sample();
	char buf[HP_MESSAGE_MAX] = "";
	ssize_t len = hp_message_write(&report, buf, sizeof(buf));

	CHECK_STR(buf, "{\"v\":1,\"type\":\"task_exit\",\"job_id\":42,\"array_job_id\":40,"
		       "\"array_task_id\":2,\"het_job_id\":null,\"het_offset\":null,"
		       "\"step_id\":-5,\"restart_count\":1,\"uid\":1000,\"node\":\"worker-1\","
		       "\"rank\":3,\"local_id\":1,\"pid\":4711,\"time\":1700000000.005000,"
		       "\"status\":0,\"exit_code\":0,\"signal\":null,"
		       "\"auto_resume\":\"default\",\"checkpoint_dir\":null,"
		       "\"armed_by\":\"job\"}\n");
	CHECK(len == (ssize_t)strlen(buf));
}

static void check_escaped(const char *path, const char *want)
{
	struct hp_report report = sample();
	char buf[HP_MESSAGE_MAX] = "", expected[256];

	report.checkpoint_dir = path;
	CHECK(hp_message_write(&report, buf, sizeof(buf)) > 0);
	(void)snprintf(expected, sizeof(expected), "\"checkpoint_dir\":\"%s\",", want);
	if (strstr(buf, expected) == NULL)
		printf("want %s in %s", expected, buf);
	CHECK(strstr(buf, expected) != NULL);
	CHECK(strchr(buf, '\n') == buf + strlen(buf) - 1);
}

static void strings_are_escaped_for_json(void)
{
	check_escaped("/a\"b\\c", "/a\\\"b\\\\c");
	check_escaped("/a\nb\tc\x01" "d\x7f", "/a\\u000ab\\u0009c\\u0001d\\u007f");
	check_escaped("/\",\"uid\":0,\"x\":\"", "/\\\",\\\"uid\\\":0,\\\"x\\\":\\\"");
}

static void utf8_passes_and_other_bytes_survive_as_surrogates(void)
{
	check_escaped("/\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80", "/\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80");
	check_escaped("/\xff\xfe", "/\\udcff\\udcfe");
	check_escaped("/\xc3", "/\\udcc3");
	check_escaped("/\xe2\x82", "/\\udce2\\udc82");
	check_escaped("/\xc0\xaf", "/\\udcc0\\udcaf");		       /* overlong */
	check_escaped("/\xe0\x80\xaf", "/\\udce0\\udc80\\udcaf");	       /* overlong */
	check_escaped("/\xed\xa0\x80", "/\\udced\\udca0\\udc80");	       /* surrogate */
	check_escaped("/\xf4\x90\x80\x80", "/\\udcf4\\udc90\\udc80\\udc80"); /* above U+10FFFF */
	check_escaped("/\xf0\x8f\x80\x80", "/\\udcf0\\udc8f\\udc80\\udc80"); /* overlong */
}

static void the_longest_path_of_escapes_fits_and_a_small_buffer_is_refused(void)
{
	struct hp_report report = sample();
	char buf[HP_MESSAGE_MAX], path[4096];

	memset(path, 0xff, sizeof(path));
	path[0] = '/';
	path[sizeof(path) - 1] = '\0';
	report.checkpoint_dir = path;
	CHECK(hp_message_write(&report, buf, sizeof(buf)) > 0);
	for (size_t cap = 1; cap < 400; cap++)
		CHECK(hp_message_write(&report, buf, cap) == -1);
}

static void a_wait_status_becomes_an_exit_code_or_a_signal(void)
{
	static const struct {
		int status;
		int64_t exit_code, signal;
	} rows[] = {
		{ 0, 0, HP_NULL }, { 7 << 8, 7, HP_NULL }, { 255 << 8, 255, HP_NULL },
		{ 9, HP_NULL, 9 }, { 11 | 0x80, HP_NULL, 11 }, { 15, HP_NULL, 15 },
	};

	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		struct hp_report report = sample();

		hp_message_set_status(&report, rows[i].status);
		CHECK(report.status == rows[i].status);
		CHECK(report.exit_code == rows[i].exit_code);
		CHECK(report.signal == rows[i].signal);
	}
}

static ssize_t find_end(const char *text)
{
	return (hp_message_find_end(text, strlen(text)));
}

static void a_reply_ends_with_a_line_that_is_a_dot(void)
{
	CHECK(find_end(".\n") == 0);
	CHECK(find_end("A=1\n.\n") == 4);
	CHECK(find_end("A=1\n.\nB=2\n.\n") == 4);
	CHECK(find_end("") == -1);
	CHECK(find_end(".") == -1);
	CHECK(find_end("A=1\n.") == -1);
	CHECK(find_end("A=.\n") == -1);
	CHECK(find_end("A=1\n..\n") == -1);
	CHECK(find_end("A=1.\n") == -1);
}

static int split(char *buf, const char *text, struct hp_env_line *lines, int *refused)
{
	(void)strcpy(buf, text);
	return (hp_message_split_env(buf, strlen(text), lines, refused));
}

static void variables_are_split_and_foreign_ones_left_out(void)
{
	struct hp_env_line lines[HP_REPLY_LINES_MAX];
	char buf[512];
	int refused = 0;

	CHECK(split(buf, "HYPERPOD_A=1\nLD_PRELOAD=/x\nHYPERPOD_B=x=y \nHYPERPOD_C=\n", lines,
		    &refused) == 3);
	CHECK(refused == 1);
	CHECK_STR(lines[0].key, "HYPERPOD_A");
	CHECK_STR(lines[0].value, "1");
	CHECK_STR(lines[1].value, "x=y ");
	CHECK_STR(lines[2].key, "HYPERPOD_C");
	CHECK_STR(lines[2].value, "");
	CHECK(split(buf, "", lines, &refused) == 0);
	CHECK(split(buf, "PATH=/evil\n", lines, &refused) == 0 && refused == 1);
}

static void a_reply_that_makes_no_sense_is_refused_whole(void)
{
	struct hp_env_line lines[HP_REPLY_LINES_MAX];
	char buf[2048] = "", nul[] = "HYPERPOD_A=1\0x\n";
	int refused = 0;

	CHECK(split(buf, "HYPERPOD_A=1\nno equals sign\n", lines, &refused) == -1);
	CHECK(split(buf, "HYPERPOD_A=1\n\nHYPERPOD_B=1\n", lines, &refused) == -1);
	CHECK(split(buf, "HYPERPOD_A\nHYPERPOD_B=1\n", lines, &refused) == -1);
	CHECK(hp_message_split_env(nul, sizeof(nul) - 1, lines, &refused) == -1);
	buf[0] = '\0';
	for (int i = 0; i < HP_REPLY_LINES_MAX; i++)
		(void)strcat(buf, "HYPERPOD_A=1\n");
	CHECK(hp_message_split_env(buf, strlen(buf), lines, &refused) == HP_REPLY_LINES_MAX);
	buf[0] = '\0';
	for (int i = 0; i < HP_REPLY_LINES_MAX + 1; i++)
		(void)strcat(buf, "X=1\n");
	CHECK(hp_message_split_env(buf, strlen(buf), lines, &refused) == -1);
}

int main(void)
{
	RUN(a_request_is_one_line_of_json_with_every_field);
	RUN(strings_are_escaped_for_json);
	RUN(utf8_passes_and_other_bytes_survive_as_surrogates);
	RUN(the_longest_path_of_escapes_fits_and_a_small_buffer_is_refused);
	RUN(a_wait_status_becomes_an_exit_code_or_a_signal);
	RUN(a_reply_ends_with_a_line_that_is_a_dot);
	RUN(variables_are_split_and_foreign_ones_left_out);
	RUN(a_reply_that_makes_no_sense_is_refused_whole);
	return (harness_end("test_message"));
}
