/*
 * An agent for the tests: a thread behind a socket in a temporary directory.
 */
#ifndef HP_FAKE_AGENT_H
#define HP_FAKE_AGENT_H

#include <stdbool.h>
#include <stddef.h>

enum fake_agent_mode {
	FAKE_AGENT_ANSWERS, /* the reply given for "env", "." for everything else */
	FAKE_AGENT_HANGS,   /* takes the message and never answers */
	FAKE_AGENT_DRIPS,   /* sends a byte now and then and never ends */
	FAKE_AGENT_FLOODS,  /* sends as much as is taken and never ends */
	FAKE_AGENT_CLOSES,  /* takes the message, sends the reply for "env", and hangs up */
	FAKE_AGENT_DEAF,    /* listens with a queue that is full, and never accepts */
};

/* Returns plugstack.conf's word "socket=...". The reply needn't be text. */
char *fake_agent_start(enum fake_agent_mode mode, const char *env_reply, size_t reply_len);
void fake_agent_stop(void); /* waits for the thread, removes the directory */

/* A word "socket=..." where nobody listens. */
char *fake_agent_nowhere(void);

/* The requests taken, after fake_agent_stop. NULL past the last one. */
const char *fake_agent_request(int index);
int fake_agent_count(const char *text);
const char *fake_agent_find(const char *text);

/* Seconds of the monotonic clock. */
double fake_agent_clock(void);

#endif
