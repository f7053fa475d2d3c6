#include "config.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "log.h"

static int read_socket(struct hp_config *config, const char *value)
{
	if (value[0] != '/' || strlen(value) >= sizeof(config->socket))
		return (-1);
	(void)snprintf(config->socket, sizeof(config->socket), "%s", value);
	return (0);
}

static int read_default(struct hp_config *config, const char *value)
{
	if (strcmp(value, "on") == 0)
		config->default_on = true;
	else if (strcmp(value, "off") == 0)
		config->default_on = false;
	else
		return (-1);
	return (0);
}

static int read_option(struct hp_config *config, const char *value)
{
	if (strcmp(value, "theirs") == 0)
		config->option_is_theirs = true;
	else if (strcmp(value, "ours") == 0)
		config->option_is_theirs = false;
	else
		return (-1);
	return (0);
}

static int read_timeout(struct hp_config *config, const char *value)
{
	unsigned long ms;
	char *end = NULL;

	errno = 0;
	ms = strtoul(value, &end, 10);
	if (errno != 0 || end == value || *end != '\0' || value[0] == '-' || ms < 1 ||
	    ms > HP_BUDGET_MS)
		return (-1);
	config->budget_ms = (int)ms;
	return (0);
}

static const struct {
	const char *key;
	int (*read)(struct hp_config *config, const char *value);
	const char *allowed;
} words[] = {
	{ "socket", read_socket, "an absolute path of at most 107 bytes" },
	{ "default", read_default, "on or off" },
	{ "timeout_ms", read_timeout, "1 to 1800" },
	{ "option", read_option, "ours or theirs" },
};

/* For the administrator, in slurmd's log; a person who submits a job sees it with -v -v only. */
static void complain(const char *word, const char *what, const char *allowed)
{
	enum spank_context context = spank_context();

	if (context == S_CTX_LOCAL || context == S_CTX_ALLOCATOR)
		hp_debug("plugstack.conf: '%s' ignored: %s %s", word, what, allowed);
	else
		hp_info("plugstack.conf: '%s' ignored: %s %s", word, what, allowed);
}

static void read_word(struct hp_config *config, const char *word)
{
	const char *equals = strchr(word, '=');
	size_t key_len = equals != NULL ? (size_t)(equals - word) : strlen(word);

	for (size_t i = 0; i < sizeof(words) / sizeof(words[0]); i++) {
		if (strlen(words[i].key) != key_len || strncmp(words[i].key, word, key_len) != 0)
			continue;
		if (equals == NULL || words[i].read(config, equals + 1) != 0)
			complain(word, "it must be", words[i].allowed);
		return;
	}
	complain(word, "known are", "socket=, default=, timeout_ms=, option=");
}

struct hp_config hp_config_read(int ac, char *const argv[])
{
	struct hp_config config = { .socket = HP_SOCKET_DEFAULT, .budget_ms = HP_BUDGET_MS };

	for (int i = 0; i < ac; i++)
		read_word(&config, argv[i]);
	return (config);
}
