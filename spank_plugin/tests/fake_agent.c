#include "fake_agent.h"

#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#define REQUESTS_MAX 256
#define HELD_MAX 256

static char directory[32], word[64];
static const char *socket_path = word + sizeof("socket=") - 1;
static enum fake_agent_mode mode;
static const char *env_reply;
static size_t env_reply_len;
static int listener = -1, wake[2] = { -1, -1 };
static int held[HELD_MAX], held_count;
static char *requests[REQUESTS_MAX];
static int request_count;
static pthread_t thread;
static bool thread_runs;

static void die(const char *what)
{
	perror(what);
	exit(2);
}

double fake_agent_clock(void)
{
	struct timespec ts;

	(void)clock_gettime(CLOCK_MONOTONIC, &ts);
	return ((double)ts.tv_sec + (double)ts.tv_nsec / 1e9);
}

static void make_word(void)
{
	(void)snprintf(directory, sizeof(directory), "/tmp/hp-test-XXXXXX");
	if (mkdtemp(directory) == NULL)
		die("mkdtemp");
	(void)snprintf(word, sizeof(word), "socket=%s/agent.sock", directory);
}

/* One line, up to its LF or the end. */
static char *read_request(int fd)
{
	char *line = calloc(1, 65536);
	size_t len = 0;

	if (line == NULL)
		die("calloc");
	while (len < 65535 && read(fd, line + len, 1) == 1 && line[len] != '\n')
		len++;
	return (line);
}

static bool stopping(int timeout_ms)
{
	struct pollfd pfd = { .fd = wake[0], .events = POLLIN };

	return (poll(&pfd, 1, timeout_ms) > 0);
}

static void reply_to(int fd, const char *request)
{
	bool is_env = strstr(request, "\"type\":\"env\"") != NULL;

	switch (mode) {
	case FAKE_AGENT_ANSWERS:
		if (is_env)
			(void)send(fd, env_reply, env_reply_len, MSG_NOSIGNAL);
		else
			(void)send(fd, ".\n", 2, MSG_NOSIGNAL);
		break;
	case FAKE_AGENT_CLOSES:
		if (is_env)
			(void)send(fd, env_reply, env_reply_len, MSG_NOSIGNAL);
		break;
	case FAKE_AGENT_DRIPS:
		while (!stopping(20) && send(fd, "H", 1, MSG_NOSIGNAL) == 1)
			;
		break;
	case FAKE_AGENT_FLOODS:
		while (!stopping(0) && send(fd, "HYPERPOD_A=1\n", 13, MSG_NOSIGNAL) > 0)
			;
		break;
	case FAKE_AGENT_HANGS:
	case FAKE_AGENT_DEAF:
	default:
		break;
	}
}

static void *serve(void *arg)
{
	struct pollfd pfds[2] = { { .fd = listener, .events = POLLIN },
				  { .fd = wake[0], .events = POLLIN } };

	(void)arg;
	for (;;) {
		int fd;

		if (poll(pfds, 2, -1) < 0)
			continue;
		if ((pfds[0].revents & POLLIN) == 0)
			break; /* asked to stop, and nobody is waiting any more */
		fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
		if (fd < 0 || request_count == REQUESTS_MAX)
			break;
		requests[request_count] = read_request(fd);
		reply_to(fd, requests[request_count++]);
		if (mode == FAKE_AGENT_HANGS && held_count < HELD_MAX)
			held[held_count++] = fd;
		else
			(void)close(fd);
	}
	return (NULL);
}

static void fill_queue(const struct sockaddr_un *addr)
{
	for (;;) {
		int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);

		if (fd < 0)
			die("socket");
		held[held_count++] = fd;
		if (connect(fd, (const struct sockaddr *)addr, sizeof(*addr)) != 0)
			return;
	}
}

char *fake_agent_start(enum fake_agent_mode new_mode, const char *reply, size_t reply_len)
{
	struct sockaddr_un addr = { .sun_family = AF_UNIX };

	make_word();
	mode = new_mode;
	env_reply = reply;
	env_reply_len = reply_len;
	while (request_count > 0)
		free(requests[--request_count]);
	(void)snprintf(addr.sun_path, sizeof(addr.sun_path), "%s", socket_path);
	listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	if (listener < 0 || bind(listener, (struct sockaddr *)&addr, sizeof(addr)) != 0 ||
	    listen(listener, mode == FAKE_AGENT_DEAF ? 0 : 64) != 0 || pipe(wake) != 0)
		die("listen");
	thread_runs = mode != FAKE_AGENT_DEAF;
	if (!thread_runs)
		fill_queue(&addr);
	else if (pthread_create(&thread, NULL, serve, NULL) != 0)
		die("pthread_create");
	return (word);
}

void fake_agent_stop(void)
{
	if (write(wake[1], "x", 1) != 1)
		die("write");
	if (thread_runs)
		(void)pthread_join(thread, NULL);
	while (held_count > 0)
		(void)close(held[--held_count]);
	(void)close(listener);
	(void)close(wake[0]);
	(void)close(wake[1]);
	(void)unlink(socket_path);
	(void)rmdir(directory);
}

char *fake_agent_nowhere(void)
{
	make_word();
	(void)rmdir(directory);
	while (request_count > 0)
		free(requests[--request_count]);
	return (word);
}

const char *fake_agent_request(int index)
{
	return (index < request_count ? requests[index] : NULL);
}

int fake_agent_count(const char *text)
{
	int count = 0;

	for (int i = 0; i < request_count; i++)
		count += strstr(requests[i], text) != NULL;
	return (count);
}

const char *fake_agent_find(const char *text)
{
	for (int i = 0; i < request_count; i++) {
		if (strstr(requests[i], text) != NULL)
			return (requests[i]);
	}
	return ("");
}
