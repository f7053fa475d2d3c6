/*
 * The words after the plugin's path in plugstack.conf: key=value, from one table.
 *
 * A wrong word is logged and left out. It never stops a job.
 */
#ifndef HP_CONFIG_H
#define HP_CONFIG_H

#include <stdbool.h>
#include <sys/un.h>

#define HP_SOCKET_DEFAULT "/run/hyperpod/agent.sock"
#define HP_BUDGET_MS 1800 /* our promise is 2 s per slurmstepd; the rest is for a busy machine */

struct hp_config {
	char socket[sizeof(((struct sockaddr_un *)0)->sun_path)];
	bool default_on; /* the cluster arms jobs that say nothing */
	bool option_is_theirs; /* another plugin offers --auto-resume: ours reads what it got */
	int budget_ms;	 /* all our waiting in one slurmstepd, together */
};

struct hp_config hp_config_read(int ac, char *const argv[]);

#endif
