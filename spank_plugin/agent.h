/*
 * Talks to the agent on this node, and keeps the promise about time.
 *
 * All waiting in one process together stays within the budget. When it is used up, or the agent
 * was slow in this phase before, a message is still handed over, without waiting for its answer.
 */
#ifndef HP_AGENT_H
#define HP_AGENT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "config.h"

/*
 * Only an agent of this user is believed; otherwise a job could feed environment variables into
 * other users' jobs. The unit tests set their own.
 */
#ifndef HP_AGENT_UID
#define HP_AGENT_UID ((uid_t)0)
#endif

enum hp_phase {
	HP_PHASE_ENV = 0,
	HP_PHASE_START,
	HP_PHASE_EXIT,
	HP_PHASE_END,
	HP_PHASE_COUNT,
};

struct hp_agent {
	const struct hp_config *config;
	int64_t used_ns;	     /* of the budget */
	bool absent[HP_PHASE_COUNT]; /* could not be reached: not tried again in this phase */
	bool slow[HP_PHASE_COUNT];   /* did not answer in time: not waited for in this phase */
	bool told;		     /* one line in the log is enough */
};

/*
 * Send a message and wait for the reply's "." line. Returns the length of the reply before it
 * (stored in reply, with room for one more byte), or -1 when there is no trustworthy reply.
 * Without a reply (NULL) the message is handed over and nothing is waited for.
 */
ssize_t hp_agent_ask(struct hp_agent *agent, enum hp_phase phase, const char *message,
		     size_t message_len, char *reply, size_t reply_cap);

#endif
