#include "message.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>

#include "policy.h"

struct writer {
	char *buf;
	size_t cap;
	size_t len;
	bool full;
};

__attribute__((format(printf, 2, 3))) static void put(struct writer *w, const char *fmt, ...)
{
	va_list args;
	int n;

	if (w->full)
		return;
	va_start(args, fmt);
	n = vsnprintf(w->buf + w->len, w->cap - w->len, fmt, args);
	va_end(args);
	if (n < 0 || (size_t)n >= w->cap - w->len) {
		w->full = true;
		return;
	}
	w->len += (size_t)n;
}

/* Length of the valid UTF-8 sequence at s (RFC 3629: no overlong forms, no surrogates), or 0. */
static size_t utf8_length(const unsigned char *s)
{
	unsigned char low = 0x80, high = 0xbf;
	size_t len;

	if (s[0] >= 0xc2 && s[0] <= 0xdf)
		len = 2;
	else if (s[0] >= 0xe0 && s[0] <= 0xef)
		len = 3;
	else if (s[0] >= 0xf0 && s[0] <= 0xf4)
		len = 4;
	else
		return (0);
	if (s[0] == 0xe0)
		low = 0xa0;
	else if (s[0] == 0xed)
		high = 0x9f;
	else if (s[0] == 0xf0)
		low = 0x90;
	else if (s[0] == 0xf4)
		high = 0x8f;
	if (s[1] < low || s[1] > high)
		return (0);
	for (size_t i = 2; i < len; i++) {
		if (s[i] < 0x80 || s[i] > 0xbf)
			return (0);
	}
	return (len);
}

/*
 * A path may hold any byte. Bytes that are no UTF-8 become U+DC80..U+DCFF, which is what Python's
 * "surrogateescape" uses, so that the agent gets the very same path back.
 */
static void put_string(struct writer *w, const char *text)
{
	const unsigned char *s = (const unsigned char *)text;

	if (text == NULL) {
		put(w, "null");
		return;
	}
	put(w, "\"");
	while (*s != '\0') {
		size_t len = utf8_length(s);

		if (*s == '"' || *s == '\\')
			put(w, "\\%c", *s);
		else if (*s < 0x20 || *s == 0x7f)
			put(w, "\\u%04x", *s);
		else if (*s < 0x80)
			put(w, "%c", *s);
		else if (len > 0)
			put(w, "%.*s", (int)len, (const char *)s);
		else
			put(w, "\\udc%02x", *s);
		s += len > 0 ? len : 1;
	}
	put(w, "\"");
}

static void put_string_field(struct writer *w, const char *name, const char *value)
{
	put(w, ",\"%s\":", name);
	put_string(w, value);
}

static void put_number_field(struct writer *w, const char *name, int64_t value)
{
	if (value == HP_NULL)
		put(w, ",\"%s\":null", name);
	else
		put(w, ",\"%s\":%" PRId64, name, value);
}

void hp_message_set_status(struct hp_report *report, int status)
{
	report->status = status;
	report->exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : HP_NULL;
	report->signal = WIFSIGNALED(status) ? WTERMSIG(status) : HP_NULL;
}

ssize_t hp_message_write(const struct hp_report *report, char *buf, size_t cap)
{
	struct writer w = { .buf = buf, .cap = cap };

	put(&w, "{\"v\":1");
	put_string_field(&w, "type", report->type);
	put_number_field(&w, "job_id", report->job_id);
	put_number_field(&w, "array_job_id", report->array_job_id);
	put_number_field(&w, "array_task_id", report->array_task_id);
	put_number_field(&w, "het_job_id", report->het_job_id);
	put_number_field(&w, "het_offset", report->het_offset);
	put_number_field(&w, "step_id", report->step_id);
	put_number_field(&w, "restart_count", report->restart_count);
	put_number_field(&w, "uid", report->uid);
	put_string_field(&w, "node", report->node);
	put_number_field(&w, "rank", report->rank);
	put_number_field(&w, "local_id", report->local_id);
	put_number_field(&w, "pid", report->pid);
	/* In whole numbers: "%f" would follow the locale's decimal point. */
	put(&w, ",\"time\":%lld.%06ld", (long long)report->time.tv_sec,
	    report->time.tv_nsec / 1000);
	put_number_field(&w, "status", report->status);
	put_number_field(&w, "exit_code", report->exit_code);
	put_number_field(&w, "signal", report->signal);
	put_string_field(&w, "auto_resume", report->auto_resume);
	put_string_field(&w, "checkpoint_dir", report->checkpoint_dir);
	put_string_field(&w, "armed_by", report->armed_by);
	put(&w, "}\n");
	return (w.full ? -1 : (ssize_t)w.len);
}

ssize_t hp_message_find_end(const char *buf, size_t len)
{
	const char *end;

	if (len >= 2 && memcmp(buf, ".\n", 2) == 0)
		return (0);
	end = memmem(buf, len, "\n.\n", 3);
	return (end == NULL ? -1 : end - buf + 1);
}

int hp_message_split_env(char *buf, size_t len, struct hp_env_line lines[HP_REPLY_LINES_MAX],
			 int *refused)
{
	int count = 0, kept = 0;
	char *line = buf;

	*refused = 0;
	if (memchr(buf, '\0', len) != NULL)
		return (-1);
	buf[len] = '\0';
	while (*line != '\0') {
		char *next = line + strcspn(line, "\n");
		char *equals = strchr(line, '=');

		if (equals == NULL || equals > next || ++count > HP_REPLY_LINES_MAX)
			return (-1);
		if (*next != '\0')
			*next++ = '\0';
		*equals = '\0';
		if (hp_policy_is_env_key(line, strlen(line))) {
			lines[kept++] = (struct hp_env_line){ .key = line, .value = equals + 1 };
		} else {
			(*refused)++;
		}
		line = next;
	}
	return (kept);
}
