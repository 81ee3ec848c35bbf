/* A stand-in for libcuda.so.1, for tests on a machine without a GPU.
 *
 * It is the other half of the stand-in libnvidia-ml: it sees the cards of the same file, which
 * $FAKE_NVML_CONFIG names, in the order that CUDA_DEVICE_ORDER says and as far as
 * CUDA_VISIBLE_DEVICES leaves them; and what a process takes here is listed there, through one small
 * file for each process in the `procdir`. The records are described in the head of fakenvml.c.
 *
 *   cc -shared -fPIC -O2 -fvisibility=hidden -Wl,-soname,libcuda.so.1 -o libcuda.so.1 fakecuda.c
 *
 * More keys of a gpu record: speed=N (FASTEST_FIRST sorts by it), context=300M (memory of a
 * process besides what it allocates). And `lies=WORD,WORD`, for tests of whoever looks for faults:
 * order (CUDA_DEVICE_ORDER is ignored), elsewhere (a process shows up on the next card), keep
 * (memory of a killed process is not given back), twice (it holds twice what was asked for),
 * endless (no allocation is too large).
 *
 * Limits: one thread; no kernels; device memory is a number, so pointers lead nowhere. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <dirent.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

enum { OK = 0, INVALID_VALUE = 1, NO_MEMORY = 2, UNINIT = 3, NO_DEVICE = 100, BAD_DEVICE = 101,
       BAD_CONTEXT = 201 };
#define API __attribute__((visibility("default"))) int
#define MAXDEV 64
#define MAXPTR 1024

typedef unsigned long long u64;
typedef struct { int gpu, gi; char uuid[64], name[96]; u64 total, base, held; double speed; int context; } device_t;

static device_t all[MAXDEV], seen[MAXDEV];
static int nall, nseen, inited, driver_version = 12000;
static char procdir[3000], own[4000], lies[200];
static u64 context_bytes = 300ULL << 20;
static struct { u64 size; int dev; } ptrs[MAXPTR];
static int current = -1;

static int lying(const char *word) { return strstr(lies, word) != NULL; }

static const char *get(const char *line, const char *key, char *out, size_t room) {
    size_t l = strlen(key); /* the value of ` key=value` or ` key="a value"` in a record */
    for (const char *p = strstr(line, key); p; p = strstr(p + 1, key)) {
        if (p == line || p[-1] != ' ' || p[l] != '=') continue;
        const char *v = p + l + 1, *end = " \t\n";
        if (*v == '"') { v++; end = "\""; }
        size_t n = strcspn(v, end);
        if (n >= room) n = room - 1;
        memcpy(out, v, n); out[n] = 0;
        return out;
    }
    return NULL;
}

static u64 size_of(const char *line, const char *key) { /* 0 if it is not there, or N/A */
    char v[64], *e;
    if (!get(line, key, v, sizeof v)) return 0;
    u64 n = strtoull(v, &e, 10);
    switch (*e) { case 'G': n <<= 10; /* fall through */ case 'M': n <<= 10; /* fall through */ case 'K': n <<= 10; }
    return n;
}

static void read_device(const char *line, int mig, int *gpus) {
    char v[64];
    if (nall == MAXDEV) return;
    device_t *d = &all[nall];
    memset(d, 0, sizeof *d);
    if (!get(line, "uuid", d->uuid, sizeof d->uuid)) return;
    if (!get(line, "name", d->name, sizeof d->name)) snprintf(d->name, sizeof d->name, "GPU");
    d->total = size_of(line, "total") - size_of(line, "reserved");
    d->base = size_of(line, "base");
    d->gi = -1;
    if (mig) {
        d->gpu = get(line, "gpu", v, sizeof v) ? atoi(v) : 0;
        d->gi = get(line, "gi", v, sizeof v) ? atoi(v) : 0;
    } else {
        d->gpu = (*gpus)++;
        d->speed = get(line, "speed", v, sizeof v) ? atof(v) : 0;
        if (size_of(line, "context")) context_bytes = size_of(line, "context");
        get(line, "lies", lies, sizeof lies);
    }
    nall++;
}

static int read_config(void) {
    const char *path = getenv("FAKE_NVML_CONFIG");
    FILE *f = path ? fopen(path, "r") : NULL;
    char *line = NULL; size_t cap = 0; int gpus = 0;
    if (!f) return NO_DEVICE;
    while (getline(&line, &cap, f) > 0) {
        if (!strncmp(line, "procdir ", 8)) sscanf(line + 8, "%2999s", procdir);
        else if (!strncmp(line, "cuda ", 5)) driver_version = atoi(line + 5);
        else if (!strncmp(line, "gpu ", 4)) read_device(line, 0, &gpus);
        else if (!strncmp(line, "mig ", 4)) read_device(line, 1, &gpus);
    }
    free(line); fclose(f);
    return OK;
}

static int faster(const void *a, const void *b) { /* equal ones stay in bus order */
    const device_t *x = a, *y = b;
    return x->speed != y->speed ? (x->speed < y->speed ? 1 : -1) : x->gpu - y->gpu;
}

static int named(const char *entry) { /* the place in `all` of a mask's entry; -1: it names nothing */
    int found = -1;
    if (!strncmp(entry, "GPU-", 4) || !strncmp(entry, "MIG-", 4)) {
        for (int i = 0; i < nall; i++) if (!strncmp(all[i].uuid, entry, strlen(entry))) {
            if (found >= 0) return -1;
            found = i;
        }
        return found;
    }
    char *e; long n = strtol(entry, &e, 10);
    if (e == entry || n < 0) return -1;
    for (int i = 0; i < nall; i++) if (all[i].gi < 0 && n-- == 0) return i;
    return -1;
}

static void apply_mask(void) {
    const char *order = getenv("CUDA_DEVICE_ORDER"), *mask = getenv("CUDA_VISIBLE_DEVICES");
    char copy[4000], *rest = copy, *entry;
    if (lying("order") || !order || strcmp(order, "PCI_BUS_ID")) qsort(all, (size_t)nall, sizeof *all, faster);
    nseen = 0;
    if (!mask) {
        for (int i = 0; i < nall; i++) if (all[i].gi < 0) seen[nseen++] = all[i];
        return;
    }
    snprintf(copy, sizeof copy, "%s", mask);
    while ((entry = strsep(&rest, ",")) && nseen < MAXDEV) {
        int i = named(entry);
        if (i < 0) return; /* the first entry that names nothing ends the list */
        for (int j = 0; j < nseen; j++) if (!strcmp(seen[j].uuid, all[i].uuid)) { nseen = 0; return; }
        seen[nseen++] = all[i];
    }
}

static u64 start_ticks(void) { /* field 22 of /proc/self/stat */
    char b[1024]; FILE *f = fopen("/proc/self/stat", "r");
    size_t n = f ? fread(b, 1, sizeof b - 1, f) : 0;
    if (f) fclose(f);
    b[n] = 0;
    char *p = strrchr(b, ')');
    for (int field = 2; p && field < 22; field++) if ((p = strchr(p + 1, ' ')) == NULL) return 0;
    return p ? strtoull(p, NULL, 10) : 0;
}

static void write_record(void) {
    char scratch[4100]; int any = 0, cards = 0;
    for (int i = 0; i < nall; i++) if (all[i].gi < 0) cards++;
    snprintf(scratch, sizeof scratch, "%s/.cuda-%d", procdir, (int)getpid());
    FILE *f = fopen(scratch, "w");
    if (!f) abort();
    for (int i = 0; i < nseen; i++) {
        device_t *d = &seen[i];
        if (!d->context) continue;
        any = 1;
        u64 held = d->held * (lying("twice") ? 2 : 1) + context_bytes;
        fprintf(f, "proc gpu=%d pid=%d", lying("elsewhere") ? (d->gpu + 1) % cards : d->gpu, (int)getpid());
        if (d->gi >= 0) fprintf(f, " gi=%d ci=0", d->gi);
        fprintf(f, " mem=%lluM type=C", (held + (1 << 20) - 1) >> 20);
        if (!lying("keep")) fprintf(f, " live=1 start=%llu", start_ticks());
        fputc('\n', f);
    }
    fclose(f);
    if (!any) { unlink(scratch); unlink(own); }
    else if (rename(scratch, own)) abort();
}

static u64 taken(const device_t *d) { /* what all others hold on a device; dead ones hold nothing */
    u64 sum = d->base; DIR *dir = opendir(procdir); struct dirent *e;
    while (dir && (e = readdir(dir))) {
        char path[4000], proc[40], *line = NULL, v[64]; size_t cap = 0;
        if (e->d_name[0] == '.' || snprintf(path, sizeof path, "%s/%s", procdir, e->d_name) >= (int)sizeof path) continue;
        FILE *f = strcmp(path, own) ? fopen(path, "r") : NULL;
        while (f && getline(&line, &cap, f) > 0) {
            if (strncmp(line, "proc ", 5)) continue;
            int gpu = get(line, "gpu", v, sizeof v) ? atoi(v) : -1, gi = get(line, "gi", v, sizeof v) ? atoi(v) : -1;
            snprintf(proc, sizeof proc, "/proc/%d", get(line, "pid", v, sizeof v) ? atoi(v) : 0);
            int live = get(line, "live", v, sizeof v) && *v == '1';
            if (gpu == d->gpu && gi == d->gi && !(live && access(proc, F_OK))) sum += size_of(line, "mem");
        }
        free(line);
        if (f) fclose(f);
    }
    if (dir) closedir(dir);
    return sum;
}

static int hold(int dev, u64 bytes) { /* add to what is held on a device, context first, if there is room */
    char path[3100];
    device_t *d = &seen[dev];
    u64 more = bytes + (d->context ? 0 : context_bytes), mine = d->held + (d->context ? context_bytes : 0);
    snprintf(path, sizeof path, "%s/.lock", procdir);
    int lock = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (lock < 0) return NO_DEVICE;
    flock(lock, LOCK_EX);
    int fits = lying("endless") || taken(d) + mine + more <= d->total;
    if (fits) { d->context = 1; d->held += bytes; write_record(); }
    close(lock);
    return fits ? OK : NO_MEMORY;
}

__attribute__((destructor)) static void at_exit(void) { if (own[0]) unlink(own); }

API cuInit(unsigned flags) {
    if (flags) return INVALID_VALUE;
    if (inited) return OK;
    int rc = read_config();
    if (rc) return rc;
    apply_mask();
    if (!nseen) return NO_DEVICE;
    snprintf(own, sizeof own, "%s/cuda-%d", procdir, (int)getpid());
    inited = 1;
    return OK;
}
API cuDriverGetVersion(int *version) { *version = driver_version; return OK; }
API cuDeviceGetCount(int *count) { *count = nseen; return inited ? OK : UNINIT; }
API cuDeviceGet(int *device, int ordinal) {
    if (!inited) return UNINIT;
    if (ordinal < 0 || ordinal >= nseen) return BAD_DEVICE;
    *device = ordinal;
    return OK;
}
API cuDeviceGetName(char *name, int room, int device) {
    snprintf(name, (size_t)room, "%s", seen[device].name);
    return OK;
}
API cuDeviceTotalMem_v2(size_t *bytes, int device) { *bytes = seen[device].total; return OK; }
API cuDeviceGetUuid_v2(unsigned char *uuid, int device) {
    const char *p = seen[device].uuid + 4;
    for (int i = 0; i < 16; i++) {
        while (*p == '-') p++;
        unsigned byte = 0;
        sscanf(p, "%2x", &byte);
        uuid[i] = (unsigned char)byte;
        p += 2;
    }
    return OK;
}
API cuDevicePrimaryCtxRetain(void **context, int device) {
    int rc = hold(device, 0);
    if (!rc) *context = &seen[device];
    return rc;
}
API cuCtxSetCurrent(void *context) { current = context ? (int)((device_t *)context - seen) : -1; return OK; }
API cuCtxSynchronize(void) { return current < 0 ? BAD_CONTEXT : OK; }
API cuMemGetInfo_v2(size_t *available, size_t *total) {
    if (current < 0) return BAD_CONTEXT;
    device_t *d = &seen[current];
    *total = d->total;
    *available = d->total - taken(d) - d->held - context_bytes;
    return OK;
}
API cuMemAlloc_v2(u64 *pointer, size_t bytes) {
    if (current < 0) return BAD_CONTEXT;
    int i = 0;
    while (i < MAXPTR && ptrs[i].size) i++;
    if (!bytes || i == MAXPTR) return INVALID_VALUE;
    int rc = hold(current, bytes);
    if (rc) return rc;
    ptrs[i].size = bytes; ptrs[i].dev = current;
    *pointer = (u64)(i + 1) << 32;
    return OK;
}
API cuMemsetD8_v2(u64 pointer, unsigned char value, size_t bytes) {
    (void)value;
    u64 i = (pointer >> 32) - 1;
    return i < MAXPTR && bytes <= ptrs[i].size ? OK : INVALID_VALUE;
}
API cuMemFree_v2(u64 pointer) {
    u64 i = (pointer >> 32) - 1;
    if (i >= MAXPTR || !ptrs[i].size) return INVALID_VALUE;
    seen[ptrs[i].dev].held -= ptrs[i].size;
    ptrs[i].size = 0;
    write_record();
    return OK;
}
static const struct { int code; const char *name, *text; } errors[] = {
    { OK, "CUDA_SUCCESS", "no error" }, { INVALID_VALUE, "CUDA_ERROR_INVALID_VALUE", "invalid argument" },
    { NO_MEMORY, "CUDA_ERROR_OUT_OF_MEMORY", "out of memory" }, { UNINIT, "CUDA_ERROR_NOT_INITIALIZED", "initialization error" },
    { NO_DEVICE, "CUDA_ERROR_NO_DEVICE", "no CUDA-capable device is detected" },
    { BAD_DEVICE, "CUDA_ERROR_INVALID_DEVICE", "invalid device ordinal" },
    { BAD_CONTEXT, "CUDA_ERROR_INVALID_CONTEXT", "invalid device context" } };
static int error_at(int code) {
    for (size_t i = 0; i < sizeof errors / sizeof *errors; i++) if (errors[i].code == code) return (int)i;
    return -1;
}
API cuGetErrorName(int code, const char **text) { int i = error_at(code); *text = i < 0 ? NULL : errors[i].name; return i < 0 ? INVALID_VALUE : OK; }
API cuGetErrorString(int code, const char **text) { int i = error_at(code); *text = i < 0 ? NULL : errors[i].text; return i < 0 ? INVALID_VALUE : OK; }
