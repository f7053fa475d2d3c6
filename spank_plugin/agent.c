#include "agent.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "log.h"
#include "message.h"

#define NS_PER_MS INT64_C(1000000)
#define FULL_QUEUE_NAP_MS 5

static int64_t now_ns(void)
{
	struct timespec ts = { 0 };

	(void)clock_gettime(CLOCK_MONOTONIC, &ts);
	return (ts.tv_sec * INT64_C(1000000000) + ts.tv_nsec);
}

/* How long this exchange may take. The shares leave the exit report its part of the budget. */
static int64_t allowed_ns(const struct hp_agent *agent, enum hp_phase phase)
{
	int64_t budget = agent->config->budget_ms * NS_PER_MS;
	int64_t share = phase == HP_PHASE_ENV ? budget * 7 / 9 : budget / 9; /* 1.4 s, 0.2 s */
	int64_t left = budget - agent->used_ns;

	if (agent->slow[phase])
		return (0);
	if (phase == HP_PHASE_START)
		left -= budget / 9;
	if (left < 0)
		left = 0;
	return (share < left ? share : left);
}

/* Wait for events until the deadline. Returns 0 when there are some, -1 with errno otherwise. */
static int wait_for(int fd, short events, int64_t deadline)
{
	struct pollfd pfd = { .fd = fd, .events = events };

	for (;;) {
		int64_t left = deadline - now_ns();
		int n;

		if (left <= 0) {
			errno = ETIMEDOUT;
			return (-1);
		}
		n = poll(&pfd, 1, (int)((left + NS_PER_MS - 1) / NS_PER_MS));
		if (n > 0)
			return (0);
		if (n < 0 && errno != EINTR)
			return (-1);
	}
}

static bool is_agent_uid(int fd)
{
	struct ucred peer = { .uid = (uid_t)-1 };
	socklen_t len = sizeof(peer);

	if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &len) != 0)
		return (false);
	if (peer.uid == HP_AGENT_UID)
		return (true);
	errno = EPERM;
	return (false);
}

/* Returns a connected socket, or -1 with errno. */
static int connect_agent(const char *path, int64_t deadline)
{
	struct sockaddr_un addr = { .sun_family = AF_UNIX };
	int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	int saved;

	if (fd < 0)
		return (-1);
	(void)snprintf(addr.sun_path, sizeof(addr.sun_path), "%s", path);
	while (connect(fd, (const struct sockaddr *)&addr, sizeof(addr)) != 0) {
		/* EAGAIN: the listen queue is full, and poll() can't tell when it no longer is. */
		if ((errno != EAGAIN && errno != EINTR) || now_ns() >= deadline)
			goto fail;
		(void)poll(NULL, 0, FULL_QUEUE_NAP_MS);
	}
	if (is_agent_uid(fd))
		return (fd);
fail:
	saved = errno;
	(void)close(fd);
	errno = saved;
	return (-1);
}

static int send_all(int fd, const char *message, size_t len, int64_t deadline)
{
	size_t sent = 0;

	while (sent < len) {
		ssize_t n = send(fd, message + sent, len - sent, MSG_NOSIGNAL);

		if (n > 0)
			sent += (size_t)n;
		else if (n < 0 && errno == EAGAIN && wait_for(fd, POLLOUT, deadline) != 0)
			return (-1);
		else if (n < 0 && errno != EAGAIN && errno != EINTR)
			return (-1);
	}
	return (0);
}

/* Read up to the "." line. A reply that doesn't fit or isn't ended is no reply. */
static ssize_t read_reply(int fd, char *reply, size_t cap, int64_t deadline)
{
	size_t len = 0;

	while (len < cap) {
		ssize_t end, n;

		if (wait_for(fd, POLLIN, deadline) != 0)
			return (-1);
		n = recv(fd, reply + len, cap - len, 0);
		if (n < 0 && (errno == EAGAIN || errno == EINTR))
			continue;
		if (n == 0)
			errno = EPROTO;
		if (n <= 0)
			return (-1);
		len += (size_t)n;
		end = hp_message_find_end(reply, len);
		if (end >= 0)
			return (end);
	}
	errno = EMSGSIZE;
	return (-1);
}

static void tell_once(struct hp_agent *agent, const char *what)
{
	if (agent->told)
		return;
	agent->told = true;
	hp_info("the agent at %s %s: %m; the job goes on without it", agent->config->socket, what);
}

ssize_t hp_agent_ask(struct hp_agent *agent, enum hp_phase phase, const char *message,
		     size_t message_len, char *reply, size_t reply_cap)
{
	int64_t start = now_ns();
	int64_t allowed = allowed_ns(agent, phase);
	ssize_t rv = -1;
	int fd;

	if (agent->absent[phase])
		return (-1);
	fd = connect_agent(agent->config->socket, start + allowed);
	if (fd < 0) {
		/* A full queue means it lives; the next message may fit, but isn't waited for. */
		if (errno == EAGAIN)
			agent->slow[phase] = true;
		else
			agent->absent[phase] = true;
		tell_once(agent, "can't be reached");
		goto out;
	}
	if (send_all(fd, message, message_len, start + allowed) != 0) {
		tell_once(agent, "takes no message");
		goto out;
	}
	if (allowed == 0 || reply == NULL)
		goto out;
	rv = read_reply(fd, reply, reply_cap, start + allowed);
	if (rv < 0) {
		agent->slow[phase] = true;
		tell_once(agent, "gives no proper answer");
	}
out:
	if (fd >= 0)
		(void)close(fd);
	agent->used_ns += now_ns() - start;
	return (rv);
}
