/*
 * A libnvidia-ml.so.1 without GPUs: it answers what a state file says. For tests and rehearsals only.
 *
 * Speaks the binary interface of NVIDIA's library for the functions that hyperpod calls through nvidia-ml-py. The
 * file is $FAKE_NVML_STATE, or else /run/hyperpod-test/nvml.state (what a reboot mends), or else
 * /usr/local/share/hyperpod-test/nvml.state (what the machine has). It is looked at again at every call, so that a GPU
 * can be broken below a running program. Lines are KEY=VALUE, and the first line with a key counts:
 *
 *   count=8                 GPUs (default 0); "missing=1" takes the last one away
 *   init=18                 what nvmlInit returns (default 0)
 *   driver=570.86.15        version of the driver
 *   gpu.KEY=VALUE           of every GPU
 *   gpu3.KEY=VALUE          of one, before the former
 *   gpu3.error=15           every call about this GPU returns this code
 *   gpu3.error.NAME=3       one function does, without "nvmlDeviceGet": error.Temperature
 *   gpu3.hang=1             calls about this GPU do not come back while this is so; "hang=1" for all calls
 *
 * Values that a part lacks (not supported) are those with the value "none".
 */
#define _GNU_SOURCE
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <pthread.h>
#include <sys/stat.h>
#include <time.h>

#define SUCCESS 0
#define INVALID_ARGUMENT 2
#define NOT_SUPPORTED 3
#define INSUFFICIENT_SIZE 7
#define DEFAULT_STATE "/run/hyperpod-test/nvml.state"
#define LASTING_STATE "/usr/local/share/hyperpod-test/nvml.state"
#define MAX_GPUS 64
#define MAX_PAIRS 1024
#define EXPORT __attribute__((visibility("default")))

struct pair {
	char key[64];
	char value[192];
};

struct device {
	unsigned int index;
};

static struct pair pairs[MAX_PAIRS];
static int pair_count;
static struct stat read_as;
static struct device devices[MAX_GPUS];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static void copy_text(char *out, size_t size, const char *text)
{
	size_t length = strnlen(text, size - 1);

	memcpy(out, text, length);
	out[length] = '\0';
}

static void parse(FILE *file)
{
	char line[300];

	pair_count = 0;
	while (pair_count < MAX_PAIRS && fgets(line, sizeof(line), file) != NULL) {
		char *value = strchr(line, '=');

		if (value == NULL || line[0] == '#')
			continue;
		*value++ = '\0';
		value[strcspn(value, "\r\n")] = '\0';
		copy_text(pairs[pair_count].key, sizeof(pairs[0].key), line);
		copy_text(pairs[pair_count].value, sizeof(pairs[0].value), value);
		pair_count++;
	}
}

/* Read the state again if the file is another one than before. */
static void refresh(void)
{
	const char *path = getenv("FAKE_NVML_STATE");
	struct stat now;
	FILE *file;
	int is_there = 0;

	if (path == NULL || path[0] == '\0') {
		path = DEFAULT_STATE;
		is_there = stat(path, &now) == 0;
		if (!is_there)
			path = LASTING_STATE;
	}
	if (!is_there && stat(path, &now) != 0) {
		memset(&read_as, 0, sizeof(read_as));
		pair_count = 0;
		return;
	}
	if (now.st_ino == read_as.st_ino && now.st_size == read_as.st_size && now.st_dev == read_as.st_dev &&
	    now.st_mtim.tv_sec == read_as.st_mtim.tv_sec && now.st_mtim.tv_nsec == read_as.st_mtim.tv_nsec)
		return;
	file = fopen(path, "re");
	if (file == NULL)
		return;
	parse(file);
	fclose(file);
	read_as = now;
}

static const char *find(const char *key)
{
	for (int i = 0; i < pair_count; i++)
		if (strcmp(pairs[i].key, key) == 0)
			return pairs[i].value;
	return NULL;
}

/* Copy a value out under the lock; returns 0 when there is none. */
static int get(const char *key, char *out, size_t size)
{
	const char *value;

	pthread_mutex_lock(&lock);
	refresh();
	value = find(key);
	if (value != NULL)
		copy_text(out, size, value);
	pthread_mutex_unlock(&lock);
	return value != NULL;
}

/* The same of one GPU, else of every GPU. The file has been looked at when the call began (wait_while). */
static int get_of(const struct device *device, const char *key, char *out, size_t size)
{
	const char *value;
	char name[96];

	pthread_mutex_lock(&lock);
	snprintf(name, sizeof(name), "gpu%u.%s", device->index, key);
	value = find(name);
	if (value == NULL) {
		snprintf(name, sizeof(name), "gpu.%s", key);
		value = find(name);
	}
	if (value != NULL)
		copy_text(out, size, value);
	pthread_mutex_unlock(&lock);
	return value != NULL;
}

static long number(const char *key, long otherwise)
{
	char text[192];

	return get(key, text, sizeof(text)) ? strtol(text, NULL, 0) : otherwise;
}

static long number_of(const struct device *device, const char *key, long otherwise)
{
	char text[192];

	return get_of(device, key, text, sizeof(text)) ? strtol(text, NULL, 0) : otherwise;
}

static int lacks(const struct device *device, const char *key)
{
	char text[192];

	return get_of(device, key, text, sizeof(text)) && strcmp(text, "none") == 0;
}

/* GPUs that there are: "count" less "missing". */
static long gpu_count(void)
{
	return number("count", 0) - number("missing", 0);
}

static void wait_while(const struct device *device)
{
	const struct timespec pause = { .tv_nsec = 5000000 };

	while (number("hang", 0) || (device != NULL && number_of(device, "hang", 0)))
		nanosleep(&pause, NULL);
}

/* What every call about a GPU does first. */
static int enter(const struct device *device, const char *name)
{
	char key[64];
	long code;

	if (device < devices || device >= devices + MAX_GPUS)
		return INVALID_ARGUMENT;
	wait_while(device);
	code = number_of(device, "error", SUCCESS);
	if (code != SUCCESS)
		return (int)code;
	snprintf(key, sizeof(key), "error.%s", name);
	return (int)number_of(device, key, SUCCESS);
}

static int give_text(const struct device *device, const char *name, const char *key, const char *otherwise, char *out,
		     unsigned int size)
{
	int code = enter(device, name);
	char text[192];

	if (code != SUCCESS)
		return code;
	if (!get_of(device, key, text, sizeof(text)))
		snprintf(text, sizeof(text), otherwise, device->index);
	copy_text(out, size, text);
	return SUCCESS;
}

static int give_number(const struct device *device, const char *name, const char *key, long otherwise,
		       unsigned int *out)
{
	int code = enter(device, name);

	if (code != SUCCESS)
		return code;
	if (lacks(device, key))
		return NOT_SUPPORTED;
	*out = (unsigned int)number_of(device, key, otherwise);
	return SUCCESS;
}

/* --- the library itself */

EXPORT int nvmlInitWithFlags(unsigned int flags)
{
	(void)flags;
	wait_while(NULL);
	return (int)number("init", SUCCESS);
}

EXPORT int nvmlInit_v2(void)
{
	return nvmlInitWithFlags(0);
}

EXPORT int nvmlShutdown(void)
{
	return SUCCESS;
}

EXPORT const char *nvmlErrorString(int code)
{
	return code == 15 ? "GPU is lost" : code == SUCCESS ? "Success" : "a code of the test library";
}

EXPORT int nvmlSystemGetDriverVersion(char *out, unsigned int size)
{
	char text[192];

	copy_text(out, size, get("driver", text, sizeof(text)) ? text : "570.86.15");
	return SUCCESS;
}

EXPORT int nvmlDeviceGetCount_v2(unsigned int *out)
{
	wait_while(NULL);
	*out = (unsigned int)gpu_count();
	return (int)number("count_error", SUCCESS);
}

EXPORT int nvmlDeviceGetHandleByIndex_v2(unsigned int index, struct device **out)
{
	if (index >= MAX_GPUS || index >= (unsigned int)gpu_count())
		return INVALID_ARGUMENT;
	devices[index].index = index;
	*out = &devices[index];
	return (int)number_of(*out, "handle_error", SUCCESS);
}

/* --- identity */

struct pci_info {
	char bus_id_legacy[16];
	unsigned int domain, bus, device, pci_device_id, pci_subsystem_id;
	char bus_id[32];
};

EXPORT int nvmlDeviceGetPciInfo_v3(struct device *device, struct pci_info *out)
{
	int code;

	memset(out, 0, sizeof(*out));
	out->bus = 0x10 + (device->index << 3);
	out->pci_device_id = 0x233010de;
	code = give_text(device, "PciInfo", "bus_id", "", out->bus_id, sizeof(out->bus_id));
	if (code == SUCCESS && out->bus_id[0] == '\0')
		snprintf(out->bus_id, sizeof(out->bus_id), "00000000:%02X:00.0", out->bus);
	return code;
}

EXPORT int nvmlDeviceGetUUID(struct device *device, char *out, unsigned int size)
{
	return give_text(device, "UUID", "uuid", "GPU-00000000-0000-0000-0000-%012u", out, size);
}

EXPORT int nvmlDeviceGetSerial(struct device *device, char *out, unsigned int size)
{
	return give_text(device, "Serial", "serial", "16510230000%02u", out, size);
}

EXPORT int nvmlDeviceGetName(struct device *device, char *out, unsigned int size)
{
	return give_text(device, "Name", "name", "NVIDIA H100 80GB HBM3", out, size);
}

EXPORT int nvmlDeviceGetVbiosVersion(struct device *device, char *out, unsigned int size)
{
	return give_text(device, "VbiosVersion", "vbios", "96.00.5E.00.01", out, size);
}

/* --- plain numbers */

#define NUMBER(FUNCTION, NAME, KEY, DEFAULT)                                    \
	EXPORT int FUNCTION(struct device *device, unsigned int *out)           \
	{                                                                       \
		return give_number(device, NAME, KEY, DEFAULT, out);            \
	}

NUMBER(nvmlDeviceGetMaxPcieLinkWidth, "MaxPcieLinkWidth", "pcie_width_max", 16)
NUMBER(nvmlDeviceGetCurrPcieLinkWidth, "CurrPcieLinkWidth", "pcie_width", 16)
NUMBER(nvmlDeviceGetMaxPcieLinkGeneration, "MaxPcieLinkGeneration", "pcie_gen_max", 5)
NUMBER(nvmlDeviceGetCurrPcieLinkGeneration, "CurrPcieLinkGeneration", "pcie_gen", 5)
NUMBER(nvmlDeviceGetPcieReplayCounter, "PcieReplayCounter", "pcie_replays", 0)
NUMBER(nvmlDeviceGetPowerUsage, "PowerUsage", "power_mw", 120000)
NUMBER(nvmlDeviceGetPowerManagementLimit, "PowerManagementLimit", "power_limit_mw", 700000)
NUMBER(nvmlDeviceGetPersistenceMode, "PersistenceMode", "persistence", 1)

EXPORT int nvmlDeviceGetApplicationsClock(struct device *device, unsigned int kind, unsigned int *out)
{
	const int is_memory = kind == 2;

	return give_number(device, "ApplicationsClock", is_memory ? "memory_clock" : "clock", is_memory ? 2619 : 1980,
			   out);
}

EXPORT int nvmlDeviceGetTemperature(struct device *device, unsigned int sensor, unsigned int *out)
{
	(void)sensor;
	return give_number(device, "Temperature", "temperature", 45, out);
}

EXPORT int nvmlDeviceGetTemperatureThreshold(struct device *device, unsigned int threshold, unsigned int *out)
{
	return give_number(device, "TemperatureThreshold", threshold == 1 ? "slowdown_c" : "shutdown_c", 90, out);
}

struct margin {
	unsigned int version;
	int margin;
};

EXPORT int nvmlDeviceGetMarginTemperature(struct device *device, struct margin *out)
{
	int code = enter(device, "MarginTemperature");

	if (code != SUCCESS)
		return code;
	if (lacks(device, "margin"))
		return NOT_SUPPORTED;
	out->margin = (int)number_of(device, "margin", 42);
	return SUCCESS;
}

static int give_reasons(struct device *device, const char *name, unsigned long long *out)
{
	int code = enter(device, name);

	if (code == SUCCESS)
		*out = (unsigned long long)number_of(device, "slowdowns", 0);
	return code;
}

EXPORT int nvmlDeviceGetCurrentClocksEventReasons(struct device *device, unsigned long long *out)
{
	return give_reasons(device, "CurrentClocksEventReasons", out);
}

EXPORT int nvmlDeviceGetCurrentClocksThrottleReasons(struct device *device, unsigned long long *out)
{
	return give_reasons(device, "CurrentClocksThrottleReasons", out);
}

EXPORT int nvmlDeviceGetUtilizationRates(struct device *device, unsigned int out[2])
{
	out[1] = 0;
	return give_number(device, "UtilizationRates", "utilisation", 0, &out[0]);
}

EXPORT int nvmlDeviceGetMemoryInfo(struct device *device, unsigned long long out[3])
{
	int code = enter(device, "MemoryInfo");

	out[0] = 85520809984ULL;
	out[2] = (unsigned long long)number_of(device, "memory_used_mib", 4) << 20;
	out[1] = out[0] - out[2];
	return code;
}

/* --- memory errors */

static int give_errors(struct device *device, const char *name, const char *key, unsigned long long *out)
{
	unsigned int value = 0;
	int code = give_number(device, name, key, 0, &value);

	*out = value;
	return code;
}

EXPORT int nvmlDeviceGetTotalEccErrors(struct device *device, unsigned int type, unsigned int counter,
				       unsigned long long *out)
{
	const char *keys[2][2] = { { "ecc_volatile_corrected", "ecc_aggregate_corrected" },
				   { "ecc_volatile", "ecc_aggregate" } };

	return give_errors(device, "TotalEccErrors", keys[type & 1][counter & 1], out);
}

EXPORT int nvmlDeviceGetMemoryErrorCounter(struct device *device, unsigned int type, unsigned int counter,
					   unsigned int location, unsigned long long *out)
{
	(void)type;
	(void)counter;
	return give_errors(device, "MemoryErrorCounter", location == 7 ? "sram" : "ecc_aggregate", out);
}

struct sram_status {
	unsigned int version;
	unsigned long long counts[11];
	unsigned int is_exceeded;
};

EXPORT int nvmlDeviceGetSramEccErrorStatus(struct device *device, struct sram_status *out)
{
	unsigned int value = 0;
	int code = give_number(device, "SramEccErrorStatus", "sram", 0, &value);

	if (code == SUCCESS) {
		out->counts[0] = value;
		out->is_exceeded = (unsigned int)number_of(device, "sram_exceeded", 0);
	}
	return code;
}

EXPORT int nvmlDeviceGetRemappedRows(struct device *device, unsigned int *corrected, unsigned int *uncorrected,
				     unsigned int *pending, unsigned int *failure)
{
	int code = enter(device, "RemappedRows");

	if (code != SUCCESS)
		return code;
	if (lacks(device, "remap"))
		return NOT_SUPPORTED;
	*corrected = 0;
	*uncorrected = (unsigned int)number_of(device, "remapped", 0);
	*pending = (unsigned int)number_of(device, "remap_pending", 0);
	*failure = (unsigned int)number_of(device, "remap_failed", 0);
	return SUCCESS;
}

struct histogram {
	unsigned int max, high, partial, low, none;
};

EXPORT int nvmlDeviceGetRowRemapperHistogram(struct device *device, struct histogram *out)
{
	int code = enter(device, "RowRemapperHistogram");

	if (code != SUCCESS)
		return code;
	if (lacks(device, "remap"))
		return NOT_SUPPORTED;
	memset(out, 0, sizeof(*out));
	out->none = (unsigned int)number_of(device, "banks_none", 0);
	out->max = 640 - out->none;
	return SUCCESS;
}

/* --- NVLink and fabric */

EXPORT int nvmlDeviceGetNvLinkState(struct device *device, unsigned int link, unsigned int *out)
{
	int code = enter(device, "NvLinkState");
	long total;

	if (code != SUCCESS)
		return code;
	total = number_of(device, "links", 18);
	if (link >= total)
		return INVALID_ARGUMENT;
	*out = link < number_of(device, "links_active", total);
	return SUCCESS;
}

EXPORT int nvmlDeviceGetNvLinkErrorCounter(struct device *device, unsigned int link, unsigned int counter,
					   unsigned long long *out)
{
	(void)link;
	(void)counter;
	return give_errors(device, "NvLinkErrorCounter", "link_errors", out);
}

EXPORT int nvmlDeviceGetNvLinkRemoteDeviceType(struct device *device, unsigned int link, unsigned int *out)
{
	(void)link;
	return give_number(device, "NvLinkRemoteDeviceType", "link_remote", 2, out);
}

struct fabric {
	unsigned int version;
	unsigned char uuid[16];
	int status;
	uint32_t clique;
	unsigned int state;
	uint32_t health;
};

EXPORT int nvmlDeviceGetGpuFabricInfoV(struct device *device, struct fabric *out)
{
	int code = enter(device, "GpuFabricInfoV");
	long uuid;

	if (code != SUCCESS)
		return code;
	if (lacks(device, "fabric_state"))
		return NOT_SUPPORTED;
	uuid = number_of(device, "fabric_uuid", 0);
	memset(out->uuid, 0, sizeof(out->uuid));
	memcpy(out->uuid, &uuid, sizeof(uuid));
	out->status = (int)number_of(device, "fabric_status", SUCCESS);
	out->clique = (uint32_t)number_of(device, "fabric_clique", 0);
	out->state = (unsigned int)number_of(device, "fabric_state", 3);
	out->health = (uint32_t)number_of(device, "fabric_health", 0);
	return SUCCESS;
}

/* --- values by number */

struct field_value {
	uint32_t id, scope;
	int64_t timestamp, latency;
	unsigned int type;
	int code;
	union {
		double as_double;
		unsigned int as_uint;
		unsigned long long as_ull;
		int as_int;
	} value;
};

static const struct {
	uint32_t id;
	unsigned int type;
	const char *key;
	const char *otherwise; /* NULL: not supported unless the state names it */
} fields[] = {
	{ 30, 1, "retired_pages", NULL },
	{ 31, 1, "retired_pending", NULL },
	{ 38, 3, "link_crc_total", NULL },
	{ 45, 3, "link_crc_data_total", NULL },
	{ 52, 3, "link_replay_total", NULL },
	{ 59, 3, "link_recovery_total", NULL },
	{ 91, 1, "links", "18" },
	{ 94, 1, "pcie_replays", "0" },
	{ 161, 3, "link_replay", "0" },
	{ 162, 3, "link_recovery", "0" },
	{ 163, 3, "link_crc", "0" },
	{ 194, 5, "slowdown_tlimit", "-2" },
	{ 208, 3, "link_receive", NULL },
	{ 211, 3, "link_integrity", NULL },
	{ 214, 3, "link_recovery_failed", NULL },
	{ 230, 1, "recovery_action", "0" },
};

static int fill(struct device *device, struct field_value *field)
{
	char text[192];
	size_t i;

	for (i = 0; i < sizeof(fields) / sizeof(fields[0]); i++)
		if (fields[i].id == field->id)
			break;
	if (i == sizeof(fields) / sizeof(fields[0]))
		return INVALID_ARGUMENT;
	if (!get_of(device, fields[i].key, text, sizeof(text))) {
		if (fields[i].otherwise == NULL)
			return NOT_SUPPORTED;
		copy_text(text, sizeof(text), fields[i].otherwise);
	}
	if (strcmp(text, "none") == 0)
		return NOT_SUPPORTED;
	field->type = fields[i].type;
	if (fields[i].type == 5)
		field->value.as_int = atoi(text);
	else if (fields[i].type == 3)
		field->value.as_ull = strtoull(text, NULL, 0);
	else
		field->value.as_uint = (unsigned int)strtoul(text, NULL, 0);
	return SUCCESS;
}

EXPORT int nvmlDeviceGetFieldValues(struct device *device, int count, struct field_value *values)
{
	int code = enter(device, "FieldValues");

	for (int i = 0; code == SUCCESS && i < count; i++)
		values[i].code = fill(device, &values[i]);
	return code;
}

/* --- processes */

struct process {
	unsigned int pid;
	unsigned long long memory;
	unsigned int gpu_instance, compute_instance;
};

EXPORT int nvmlDeviceGetComputeRunningProcesses_v3(struct device *device, unsigned int *count, struct process *out)
{
	int code = enter(device, "ComputeRunningProcesses");
	unsigned int room = *count, found = 0;
	char text[192] = "", *rest, *word;

	if (code != SUCCESS)
		return code;
	get_of(device, "processes", text, sizeof(text));
	for (word = strtok_r(text, " ,", &rest); word != NULL; word = strtok_r(NULL, " ,", &rest), found++) {
		if (out == NULL || found >= room)
			continue;
		memset(&out[found], 0, sizeof(out[0]));
		out[found].pid = (unsigned int)strtoul(word, NULL, 10);
		out[found].memory = 1 << 20;
	}
	*count = found;
	return found > 0 && (out == NULL || found > room) ? INSUFFICIENT_SIZE : SUCCESS;
}
