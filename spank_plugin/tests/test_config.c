#include "config.h"
#include "fake_spank.h"
#include "harness.h"

static struct hp_config read_words(int count, const char *first, const char *second)
{
	char words[2][256];
	char *argv[] = { words[0], words[1] };

	(void)snprintf(words[0], sizeof(words[0]), "%s", first != NULL ? first : "");
	(void)snprintf(words[1], sizeof(words[1]), "%s", second != NULL ? second : "");
	fake_reset(S_CTX_REMOTE);
	return (hp_config_read(count, argv));
}

static void without_words_the_defaults_hold(void)
{
	struct hp_config config = read_words(0, NULL, NULL);

	CHECK_STR(config.socket, "/run/hyperpod/agent.sock");
	CHECK(!config.default_on);
	CHECK(config.budget_ms == HP_BUDGET_MS && HP_BUDGET_MS < 2000);
	CHECK_STR(fake_log(), "");
}

static void every_known_word_is_taken(void)
{
	struct hp_config config = read_words(2, "socket=/tmp/a.sock", "default=on");

	CHECK_STR(config.socket, "/tmp/a.sock");
	CHECK(config.default_on);
	config = read_words(2, "timeout_ms=90", "default=off");
	CHECK(config.budget_ms == 90);
	CHECK(!config.default_on);
	CHECK_STR(fake_log(), "");
}

static void a_wrong_word_is_named_and_changes_nothing(void)
{
	static const char *const rows[] = {
		"default=maybe", "default=", "default", "timeout_ms=0", "timeout_ms=-5",
		"timeout_ms=1801", "timeout_ms=5s", "timeout_ms=", "socket=relative.sock",
		"socket=", "soket=/tmp/a.sock", "sock=/a", "socket_=/a", "=", "", "nonsense",
	};

	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		struct hp_config config = read_words(1, rows[i], NULL);

		CHECK_STR(config.socket, HP_SOCKET_DEFAULT);
		CHECK(!config.default_on && config.budget_ms == HP_BUDGET_MS);
		CHECK(fake_log_count("ignored") == 1);
		CHECK(strstr(fake_log(), rows[i]) != NULL);
	}
}

static void a_socket_path_too_long_for_the_kernel_is_refused(void)
{
	char word[200];
	struct hp_config config;

	memset(word, 'a', sizeof(word));
	memcpy(word, "socket=/", 8);
	word[sizeof(word) - 1] = '\0';
	config = read_words(1, word, NULL);
	CHECK_STR(config.socket, HP_SOCKET_DEFAULT);
	CHECK(fake_log_count("107 bytes") == 1);
}

int main(void)
{
	RUN(without_words_the_defaults_hold);
	RUN(every_known_word_is_taken);
	RUN(a_wrong_word_is_named_and_changes_nothing);
	RUN(a_socket_path_too_long_for_the_kernel_is_refused);
	return (harness_end("test_config"));
}
