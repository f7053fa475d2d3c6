/*
 * The words on the wire: a request is one line of JSON, a reply is lines ended by a line ".".
 *
 * Pure: works on the caller's buffers only.
 */
#ifndef HP_MESSAGE_H
#define HP_MESSAGE_H

#include <stdint.h>
#include <sys/types.h>
#include <time.h>

#define HP_MESSAGE_MAX 32768 /* a checkpoint path of 4 KiB, every byte escaped, fits */
#define HP_REPLY_MAX 65536
#define HP_REPLY_LINES_MAX 64

#define HP_NULL INT64_MIN /* a number that travels as null */

struct hp_report {
	const char *type; /* "env", "task_start", "task_exit", "step_end" */
	int64_t job_id;
	int64_t array_job_id;  /* or HP_NULL */
	int64_t array_task_id; /* or HP_NULL */
	int64_t het_job_id;    /* or HP_NULL */
	int64_t het_offset;    /* or HP_NULL */
	int64_t step_id;
	int64_t restart_count;
	int64_t uid;
	const char *node;
	int64_t rank;	  /* -1 outside a task */
	int64_t local_id; /* -1 outside a task */
	int64_t pid;	  /* 0 outside a task */
	struct timespec time;
	int64_t status;	     /* raw wait status, 0 before the exit */
	int64_t exit_code;   /* or HP_NULL */
	int64_t signal;	     /* or HP_NULL */
	const char *auto_resume;    /* or NULL */
	const char *checkpoint_dir; /* or NULL */
	const char *armed_by;	    /* or NULL */
};

struct hp_env_line {
	char *key;
	char *value;
};

/* Fill exit_code and signal from a raw wait status. */
void hp_message_set_status(struct hp_report *report, int status);

/* Write the request with its LF. Returns its length, or -1 when buf is too small. */
ssize_t hp_message_write(const struct hp_report *report, char *buf, size_t cap);

/* Length of the reply before its closing "." line, or -1 while that hasn't come. */
ssize_t hp_message_find_end(const char *buf, size_t len);

/*
 * Split a complete reply (without the "." line) into KEY=VALUE lines, in place; buf[len] must be
 * writable. Lines with a key that isn't ours are left out and counted in *refused. Returns the
 * number of lines kept, or -1 when the whole reply can't be trusted: a NUL byte, a line without
 * "=", or more than HP_REPLY_LINES_MAX lines.
 */
int hp_message_split_env(char *buf, size_t len, struct hp_env_line lines[HP_REPLY_LINES_MAX],
			 int *refused);

#endif
