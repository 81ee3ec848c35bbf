/* A stand-in for libnvidia-ml.so.1, for tests on a machine without a GPU.
 *
 * It answers from the text file that $FAKE_NVML_CONFIG names and reads it again whenever it, or a
 * file in its `procdir`, changes; so a test moves memory, ends a process or loses a card by
 * rewriting a file while the real, unmodified binding (nvidia-ml-py) keeps polling. box.py writes
 * such files; its records are those of the simulated devices.
 *
 *   cc -shared -fPIC -O2 -fvisibility=hidden -Wl,-soname,libnvidia-ml.so.1 \
 *      -o libnvidia-ml.so.1 fakenvml.c -lpthread
 *
 * One record a line, `kind key=value ...`; quotes keep blanks, # starts a comment; sizes K M G:
 *
 *   driver 570.124.06    cuda 12080    procdir DIR    # DIR: more records, a small file a process
 *   boot N             # another N than at nvmlInit: every call fails (999) until the next init
 *   pidns [shift=N] [hide=1]   # pids as a container sees them: others than its own, or none
 *   gpu  name="..." uuid=GPU-... bus=00000000:07:00.0 total=80G [reserved=640M] [base=0] [used=N]
 *        [mode=0|2|3] [migmode=0|1] [acct=0|1] [procs=no] [procmem=N/A] [mps=1] [numa=N] [cpus=MASK]
 *        [cc=8.0] [util=] [memutil=] [remap=corrected,uncorrected,pending,failed] [recovery=0..7]
 *        [ecc=N] [ecc_corrected=N] [addressing=N] [nvlinks=N] [reasons=BITS] [fan= temp= power= ...]
 *   mig  gpu=0 index=0 gi=1 ci=0 uuid=MIG-... name="..." total=20G
 *   proc gpu=0 pid=123 mem=512M|N/A [type=C|G|M or CM] [gi= ci=] [live=1] [start=TICKS] [sm= memutil=]
 *   acct gpu=0 pid=123 maxmem=3G [running=0|1] [time=MS] [start=US] [util=N] [gi= ci=]
 *   link a=0 b=1 level=0|10|20|30|40|50 [nvlink=1] [p2p=0]
 *   xid  gpu=0 code=79 # delivered once to each event set that was there before it; append, only
 *   fail fn=NAME|PREFIX*|* [gpu=0] [code=N] [delay_ms=N] [hold=0]
 *
 * The order of gpu lines is NVML's index. `used` defaults to base and what the shown processes
 * hold. live=1: gone with its process (a zombie's memory is free), `start` tells a reused pid; pid=0
 * holds memory and is not listed. A key left out makes its query "not supported" where cards differ.
 * No file: the driver is not loaded. fn=X also names X_v2 and X_v3, fn=* is every call on a device,
 * fn=nvml* every call at all. A delay ends early when its line is taken away; it holds up every
 * other call of the process, as a wedged driver does, or, with hold=0, only its own.
 *
 * Limits: Set calls change nothing; a function that is not here is a missing symbol; nvidia-smi
 * cannot be used (it asks through a private table). Only public facts of the interface are used:
 * names, argument order, layouts, codes. */
#define _GNU_SOURCE
#include <dirent.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { OK = 0, UNINIT = 1, INVALID = 2, NOTSUP = 3, NOPERM = 4, NOTFOUND = 6,
       SMALL = 7, NODRIVER = 9, TIMEOUT = 10, UNKNOWN = 999 };
#define API __attribute__((visibility("default"))) int
#define NA64 0xffffffffffffffffULL
#define NA32 0xffffffffu
#define MAXDEV 64
#define MAXREC 4096
#define MAXKV 40

typedef unsigned int u32;
typedef unsigned long long u64;
typedef struct { u64 total, free, used; } mem1_t;
typedef struct { u32 version; u64 total, reserved, free, used; } mem2_t;
typedef struct { u32 pid; u64 used; } proc1_t;
typedef struct { u32 pid; u64 used; u32 gi, ci; } proc2_t;
typedef struct { u32 gpu, memory; } util_t;
typedef struct { char legacy[16]; u32 domain, bus, device, devid, subsys; char busid[32]; } pci_t;
typedef struct { u32 pid; u64 ts; u32 sm, mem, enc, dec; } sample_t;
typedef struct { u64 ts; u32 pid, sm, mem, enc, dec, jpg, ofa; } psample_t;
typedef struct { u32 version, count; u64 last; psample_t *arr; } psamples_t;
typedef struct { u32 gpu, mem; u64 maxmem, time, start; u32 running, rsv[5]; } acct_t;
typedef struct { void *dev; u64 type, data; u32 gi, ci; } event_t;
typedef struct { u32 id, scope; long long at, took; u32 type; int rc; u64 value; } field_t;
typedef struct { u32 version, value; } mode_t1;

/* One line of the file: a kind, then key=value pairs pointing into buf. */
typedef struct { char *kind; int n; char *k[MAXKV], *v[MAXKV]; char *buf; } rec_t;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static int inited;
static char booted[32]; /* the `boot` record as it was at nvmlInit */
static rec_t recs[MAXREC];
static int nrecs;
static u64 stamp;
static char slots[MAXDEV]; /* a handle is &slots[i]; i is the device's record order */
static rec_t *devs[MAXDEV]; /* gpu and mig records, gpus first */
static int ngpu, ndev;

static const char *get(const rec_t *r, const char *k, const char *d) {
    for (int i = 0; r && i < r->n; i++) if (!strcmp(r->k[i], k)) return r->v[i];
    return d;
}
static u64 num(const char *s) { /* 12, 0x1f, 80G, 512M, 4K; N/A is "not available" */
    if (!s || !*s) return 0;
    if (!strcasecmp(s, "na") || !strcasecmp(s, "n/a")) return NA64;
    char *e; u64 v = strtoull(s, &e, 0);
    switch (*e) { case 'G': v <<= 10; /* fall through */ case 'M': v <<= 10; /* fall through */ case 'K': v <<= 10; }
    return v;
}
static u64 getn(const rec_t *r, const char *k, u64 d) { const char *s = get(r, k, NULL); return s ? num(s) : d; }
static int alive(u32 pid, u64 start) { /* a zombie has given its GPU memory back already */
    char p[64], b[1024], *e; snprintf(p, sizeof p, "/proc/%u/stat", pid);
    FILE *f = pid ? fopen(p, "r") : NULL; if (!f) return 0;
    size_t n = fread(b, 1, sizeof b - 1, f); fclose(f); b[n] = 0;
    if (!(e = strrchr(b, ')')) || !e[1] || e[2] == 'Z' || e[2] == 'X') return 0;
    if (!start) return 1;
    e++; /* field 22, the start time; a blank is before field 3 */
    for (int field = 2; e && field < 22; field++) if ((e = strchr(e, ' '))) e++;
    return e && strtoull(e, NULL, 10) == start;
}

static void parse_line(const char *line) {
    while (*line == ' ' || *line == '\t') line++;
    if (!*line || *line == '#' || *line == '\n' || nrecs == MAXREC) return;
    rec_t *r = &recs[nrecs];
    memset(r, 0, sizeof *r);
    char *p = r->buf = strdup(line);
    char *tok[MAXKV + 1]; int nt = 0;
    while (*p && nt <= MAXKV) { /* split at blanks, "..." kept together */
        while (*p == ' ' || *p == '\t' || *p == '\n' || *p == '\r') *p++ = 0;
        if (!*p || *p == '#') { *p = 0; break; }
        tok[nt++] = p;
        int q = 0;
        for (; *p && (q || !strchr(" \t\r\n", *p)); p++) if (*p == '"') { q = !q; memmove(p, p + 1, strlen(p)); p--; }
    }
    if (!nt) { free(r->buf); return; }
    r->kind = tok[0];
    for (int i = 1; i < nt; i++) {
        char *eq = strchr(tok[i], '=');
        if (eq) { *eq = 0; r->k[r->n] = tok[i]; r->v[r->n++] = eq + 1; }
        else { r->k[r->n] = (char *)""; r->v[r->n++] = tok[i]; }
    }
    nrecs++;
}
static void parse_file(const char *path) {
    FILE *f = fopen(path, "r"); char *line = NULL; size_t cap = 0;
    if (!f) return;
    while (getline(&line, &cap, f) > 0) parse_line(line);
    free(line); fclose(f);
}
static u64 mix(u64 h, const char *path) {
    struct stat st;
    if (stat(path, &st)) return h * 31 + 7;
    return ((((h * 1000003) ^ (u64)st.st_ino) * 1000003 ^ (u64)st.st_size) * 1000003 ^ (u64)st.st_mtim.tv_sec) * 1000003 ^ (u64)st.st_mtim.tv_nsec;
}
static const rec_t *first(const char *kind) {
    for (int i = 0; i < nrecs; i++) if (!strcmp(recs[i].kind, kind)) return &recs[i];
    return NULL;
}
static u64 walk(const char *dir, int parse) { /* the procdir: one small file a process */
    u64 h = mix(3, dir); struct dirent **e; char p[4096];
    int n = scandir(dir, &e, NULL, alphasort);
    for (int i = 0; i < n; i++) {
        if (e[i]->d_name[0] != '.') {
            snprintf(p, sizeof p, "%s/%s", dir, e[i]->d_name);
            if (parse) parse_file(p); else h = mix(h, p);
        }
        free(e[i]);
    }
    if (n >= 0) free(e);
    return h;
}
static int load(void) {
    const char *path = getenv("FAKE_NVML_CONFIG");
    if (!path || access(path, R_OK)) return NODRIVER;
    const char *dir = get(first("procdir"), "", NULL);
    u64 s = mix(1, path) ^ (dir ? walk(dir, 0) : 0);
    if (nrecs && s == stamp) return OK;
    for (int i = 0; i < nrecs; i++) free(recs[i].buf);
    nrecs = 0;
    stamp = mix(1, path); /* before reading: a change meanwhile is then seen by the next call */
    parse_file(path);
    dir = get(first("procdir"), "", NULL);
    if (dir) { char d[4096]; snprintf(d, sizeof d, "%s", dir); stamp ^= walk(d, 0); walk(d, 1); }
    ngpu = ndev = 0;
    for (int i = 0; i < nrecs && ndev < MAXDEV; i++) if (!strcmp(recs[i].kind, "gpu")) devs[ndev++] = &recs[i];
    ngpu = ndev;
    for (int i = 0; i < nrecs && ndev < MAXDEV; i++) if (!strcmp(recs[i].kind, "mig")) devs[ndev++] = &recs[i];
    return OK;
}
static int fails(const rec_t *r, const char *fn, int dev) { /* is it a `fail` record about this call? */
    if (strcmp(r->kind, "fail")) return 0;
    const char *f = get(r, "fn", "*"), *g = get(r, "gpu", NULL);
    size_t l = strlen(f), b = strlen(fn); /* nvmlX also names nvmlX_v2, _v3; nvmlX* is a prefix */
    if (b > 3 && fn[b - 3] == '_' && fn[b - 2] == 'v') b -= 3;
    int any = !strcmp(f, "*") && dev >= 0;
    int named = !strcmp(f, fn) || (l == b && !strncmp(f, fn, b)) || (l > 1 && f[l - 1] == '*' && !strncmp(f, fn, l - 1));
    return (any || named) && !(g && (dev < 0 || (u64)dev != num(g)));
}
static u64 now_us(clockid_t c) { struct timespec t; clock_gettime(c, &t); return (u64)t.tv_sec * 1000000 + (u64)t.tv_nsec / 1000; }
/* Be as slow as the file says and return the code that it asks for. With hold=0 the lock is free
 * meanwhile, so records read before this call may be gone after it. */
static int injected(const char *fn, int dev) {
    for (u64 begun = now_us(CLOCK_MONOTONIC);;) {
        u64 ms = 0; int code = OK, hold = 1;
        for (int i = 0; i < nrecs; i++) {
            if (!fails(&recs[i], fn, dev)) continue;
            if (getn(&recs[i], "delay_ms", 0) > ms) { ms = getn(&recs[i], "delay_ms", 0); hold = (int)getn(&recs[i], "hold", 1); }
            if (!code) code = (int)getn(&recs[i], "code", 0);
        }
        u64 spent = (now_us(CLOCK_MONOTONIC) - begun) / 1000;
        if (spent >= ms) return code;
        if (!hold) pthread_mutex_unlock(&lock);
        u64 nap = ms - spent < 10 ? ms - spent : 10;
        struct timespec t = { 0, (long)nap * 1000000 }; nanosleep(&t, NULL);
        if (!hold) pthread_mutex_lock(&lock);
        int rc = load(); if (rc) return rc;
    }
}
static int idx(void *h) { long i = (char *)h - slots; return i >= 0 && i < ndev ? (int)i : -1; }
static const rec_t *dev_at(void *h) { int i = idx(h); return i < 0 ? &recs[0] : devs[i]; }
static int enter(const char *fn, void *h, int needs_dev) {
    pthread_mutex_lock(&lock);
    int rc = inited ? load() : UNINIT;
    if (!rc && strcmp(booted, get(first("boot"), "", "0"))) rc = UNKNOWN;
    if (!rc && needs_dev && idx(h) < 0) rc = INVALID;
    if (!rc && fn) rc = injected(fn, needs_dev ? idx(h) : -1);
    if (!rc && needs_dev && idx(h) < 0) rc = INVALID; /* again: the file may have changed in a delay */
    return rc;
}
static int leave(int rc) { pthread_mutex_unlock(&lock); return rc; }
#define IN(h) int rc = enter(__func__, (void *)(h), 1); if (rc) return leave(rc); const rec_t *d = dev_at((void *)(h)); (void)d
#define IN0 int rc = enter(__func__, NULL, 0); if (rc) return leave(rc)
#define OUT(x) return leave(x)
#define ALIAS(new, old) API new() __attribute__((alias(#old)))

static int put(char *dst, u32 len, const char *s) { if (strlen(s) + 1 > len) return SMALL; strcpy(dst, s); return OK; }
static int is_mig(const rec_t *d) { return !strcmp(d->kind, "mig"); }
static int gpu_of(const rec_t *d) { /* the NVML index of the card a record lives on */
    if (is_mig(d)) return (int)getn(d, "gpu", 0);
    for (int i = 0; i < ngpu; i++) if (devs[i] == d) return i;
    return -1;
}
/* Does this proc/acct line belong to device d? A MIG handle sees only its own. */
static int on(const rec_t *r, const rec_t *d) {
    if (getn(r, "gpu", 0) != (u64)gpu_of(d)) return 0;
    return !is_mig(d) || (getn(r, "gi", NA32) == getn(d, "gi", 0) && getn(r, "ci", 0) == getn(d, "ci", 0));
}
static const rec_t *card_of(const rec_t *d) { return is_mig(d) ? devs[gpu_of(d)] : d; }
static int is_type(const rec_t *r, const rec_t *d, char type) { /* an MPS client is compute too */
    const char *t = get(r, "type", "C");
    return strchr(t, type) || (type == 'M' && getn(card_of(d), "mps", 0) && strchr(t, 'C'));
}
static int shown(const rec_t *r, const rec_t *d, char type) {
    if (strcmp(r->kind, "proc") || !on(r, d)) return 0;
    if (type && (!is_type(r, d, type) || !getn(r, "pid", 0) || getn(first("pidns"), "hide", 0))) return 0;
    return !getn(r, "live", 0) || alive((u32)getn(r, "pid", 0), getn(r, "start", 0));
}
static u32 pid_of(const rec_t *r) { /* as this reader's pid namespace has it */
    int kept = !strcmp(r->kind, "proc") && !getn(r, "live", 0); /* said by hand: meant as it is */
    return (u32)(getn(r, "pid", 0) + (kept ? 0 : getn(first("pidns"), "shift", 0)));
}
static void memory(const rec_t *d, u64 *t, u64 *rsv, u64 *f, u64 *u) {
    u64 sum = getn(d, "base", 0);
    for (int i = 0; i < nrecs; i++) if (shown(&recs[i], d, 0)) { u64 m = getn(&recs[i], "mem", 0); if (m != NA64) sum += m; }
    *t = getn(d, "total", 0); *rsv = getn(d, "reserved", 0);
    *u = getn(d, "used", sum); *f = *t > *rsv + *u ? *t - *rsv - *u : 0;
}

/* ---- library and system ---- */
API nvmlInitWithFlags(u32 flags) {
    (void)flags;
    pthread_mutex_lock(&lock);
    int rc = load();
    if (!rc) rc = injected("nvmlInit", -1);
    if (!rc) { inited++; snprintf(booted, sizeof booted, "%s", get(first("boot"), "", "0")); }
    return leave(rc);
}
API nvmlInit_v2(void) { return nvmlInitWithFlags(0); }
API nvmlInit(void) { return nvmlInitWithFlags(0); }
API nvmlShutdown(void) { pthread_mutex_lock(&lock); int rc = inited ? OK : UNINIT; if (inited) inited--; return leave(rc); }
__attribute__((visibility("default"))) const char *nvmlErrorString(int c) {
    static __thread char b[32]; snprintf(b, sizeof b, "fake NVML error %d", c); return b;
}
API nvmlSystemGetDriverVersion(char *s, u32 n) { IN0; OUT(put(s, n, get(first("driver"), "", "570.124.06"))); }
API nvmlSystemGetNVMLVersion(char *s, u32 n) { IN0; OUT(put(s, n, get(first("nvml"), "", "12.570.124.06"))); }
API nvmlSystemGetCudaDriverVersion(int *v) { IN0; *v = (int)num(get(first("cuda"), "", "12080")); OUT(OK); }
ALIAS(nvmlSystemGetCudaDriverVersion_v2, nvmlSystemGetCudaDriverVersion);
API nvmlSystemGetProcessName(u32 pid, char *s, u32 n) {
    IN0; char p[64], b[1024] = ""; snprintf(p, sizeof p, "/proc/%u/cmdline", pid);
    FILE *f = fopen(p, "r"); if (!f) OUT(NOTFOUND);
    size_t k = fread(b, 1, sizeof b - 1, f); fclose(f); b[k] = 0; b[n - 1 < k ? n - 1 : k] = 0; OUT(put(s, n, b));
}
/* ---- handles ---- */
API nvmlDeviceGetCount(u32 *n) { IN0; *n = (u32)ngpu; OUT(OK); }
ALIAS(nvmlDeviceGetCount_v2, nvmlDeviceGetCount);
API nvmlDeviceGetHandleByIndex(u32 i, void **h) {
    int rc = enter(NULL, NULL, 0); if (rc) OUT(rc);
    if (i >= (u32)ngpu) OUT(INVALID);
    rc = injected(__func__, (int)i); if (rc) OUT(rc);
    *h = &slots[i]; OUT(OK);
}
ALIAS(nvmlDeviceGetHandleByIndex_v2, nvmlDeviceGetHandleByIndex);
static int by(const char *key, const char *v, void **h, const char *fn) {
    for (int i = 0; i < ndev; i++) if (!strcasecmp(get(devs[i], key, "-"), v)) { *h = &slots[i]; return injected(fn, i); }
    return NOTFOUND;
}
API nvmlDeviceGetHandleByUUID(const char *u, void **h) { int rc = enter(NULL, NULL, 0); if (rc) OUT(rc); OUT(by("uuid", u, h, __func__)); }
API nvmlDeviceGetHandleByPciBusId(const char *b, void **h) {
    int rc = enter(NULL, NULL, 0); if (rc) OUT(rc);
    int r = by("bus", b, h, __func__);
    if (r == NOTFOUND) { char l[64]; snprintf(l, sizeof l, "0000%s", b); r = by("bus", l, h, __func__); }
    OUT(r);
}
ALIAS(nvmlDeviceGetHandleByPciBusId_v2, nvmlDeviceGetHandleByPciBusId);
API nvmlDeviceGetIndex(void *h, u32 *i) { IN(h); if (is_mig(d)) OUT(NOTSUP); *i = (u32)idx(h); OUT(OK); }
API nvmlDeviceGetMinorNumber(void *h, u32 *i) { IN(h); *i = (u32)getn(d, "minor", (u64)idx(h)); OUT(OK); }
API nvmlDeviceGetName(void *h, char *s, u32 n) { IN(h); OUT(put(s, n, get(d, "name", "NVIDIA Fake GPU"))); }
API nvmlDeviceGetUUID(void *h, char *s, u32 n) { IN(h); OUT(put(s, n, get(d, "uuid", "GPU-00000000-0000-0000-0000-000000000000"))); }
API nvmlDeviceGetSerial(void *h, char *s, u32 n) { IN(h); const char *v = get(d, "serial", NULL); OUT(v ? put(s, n, v) : NOTSUP); }
API nvmlDeviceGetPciInfo_v3(void *h, pci_t *p) {
    IN(h); if (is_mig(d)) OUT(NOTSUP);
    memset(p, 0, sizeof *p);
    const char *b = get(d, "bus", "00000000:01:00.0"); u32 fn = 0;
    if (sscanf(b, "%x:%x:%x.%x", &p->domain, &p->bus, &p->device, &fn) < 3) OUT(INVALID);
    snprintf(p->busid, sizeof p->busid, "%08X:%02X:%02X.0", p->domain & 0xffffffffu, p->bus & 0xff, p->device & 0xff);
    snprintf(p->legacy, sizeof p->legacy, "%04X:%02X:%02X.0", p->domain & 0xffff, p->bus & 0xff, p->device & 0xff);
    p->devid = (u32)getn(d, "pciid", 0x20b510de); p->subsys = (u32)getn(d, "subsys", 0x153310de); OUT(OK);
}
ALIAS(nvmlDeviceGetPciInfo_v2, nvmlDeviceGetPciInfo_v3);
ALIAS(nvmlDeviceGetPciInfo, nvmlDeviceGetPciInfo_v3);
/* ---- memory, utilisation, processes ---- */
API nvmlDeviceGetMemoryInfo(void *h, mem1_t *m) {
    IN(h); if (!get(d, "total", NULL)) OUT(NOTSUP);
    u64 r; memory(d, &m->total, &r, &m->free, &m->used); m->used += r; OUT(OK); /* v1 counts the reserved part as used */
}
API nvmlDeviceGetMemoryInfo_v2(void *h, mem2_t *m) {
    IN(h); if (m->version != (sizeof *m | 2u << 24)) OUT(25);
    if (!get(d, "total", NULL)) OUT(NOTSUP);
    memory(d, &m->total, &m->reserved, &m->free, &m->used); OUT(OK);
}
API nvmlDeviceGetBAR1MemoryInfo(void *h, mem1_t *m) {
    IN(h); m->total = getn(d, "bar1", 256ULL << 20); m->used = 2ULL << 20; m->free = m->total - m->used;
    OUT(OK); /* same field order as nvmlMemory_t */
}
API nvmlDeviceGetUtilizationRates(void *h, util_t *u) {
    IN(h); if (is_mig(d)) OUT(NOTSUP);
    u->gpu = (u32)getn(d, "util", 0); u->memory = (u32)getn(d, "memutil", 0); OUT(OK);
}
static int procs(const rec_t *d, char type, u32 *n, void *out, int v) {
    u32 k = 0, cap = out ? *n : 0;
    int silent = getn(card_of(d), "procmem", 0) == NA64;
    if (!strcmp(get(card_of(d), "procs", ""), "no")) return NOTSUP;
    for (int i = 0; i < nrecs; i++) {
        const rec_t *r = &recs[i];
        if (!shown(r, d, type)) continue;
        if (k < cap) {
            u32 gi = (u32)getn(r, "gi", NA32), ci = (u32)getn(r, "ci", gi == NA32 ? NA32 : 0), pid = pid_of(r);
            u64 mem = silent ? NA64 : getn(r, "mem", 0);
            if (v == 1) { proc1_t *p = (proc1_t *)out + k; p->pid = pid; p->used = mem; }
            else { proc2_t *p = (proc2_t *)out + k; p->pid = pid; p->used = mem; p->gi = gi; p->ci = ci; }
        }
        k++;
    }
    *n = k;
    return k > cap ? SMALL : OK;
}
#define PROCS(what, t) \
    API nvmlDeviceGet##what##RunningProcesses(void *h, u32 *n, proc1_t *p) { IN(h); OUT(procs(d, t, n, p, 1)); } \
    API nvmlDeviceGet##what##RunningProcesses_v2(void *h, u32 *n, proc2_t *p) { IN(h); OUT(procs(d, t, n, p, 2)); } \
    API nvmlDeviceGet##what##RunningProcesses_v3(void *h, u32 *n, proc2_t *p) { IN(h); OUT(procs(d, t, n, p, 3)); }
PROCS(Compute, 'C') PROCS(Graphics, 'G') PROCS(MPSCompute, 'M')
API nvmlDeviceGetProcessUtilization(void *h, sample_t *s, u32 *n, u64 last) {
    IN(h); u32 k = 0, cap = s ? *n : 0; u64 ts = now_us(CLOCK_REALTIME);
    for (int i = 0; i < nrecs; i++) if (shown(&recs[i], d, 'C') && get(&recs[i], "sm", NULL) && ts > last) {
        if (k < cap) s[k] = (sample_t){ pid_of(&recs[i]), ts, (u32)getn(&recs[i], "sm", 0), (u32)getn(&recs[i], "memutil", 0), 0, 0 };
        k++;
    }
    *n = k; OUT(!k ? NOTFOUND : k > cap ? SMALL : OK);
}
API nvmlDeviceGetProcessesUtilizationInfo(void *h, psamples_t *q) {
    IN(h); if (q->version != (sizeof *q | 1u << 24)) OUT(25);
    u32 k = 0, cap = q->arr ? q->count : 0; u64 ts = now_us(CLOCK_REALTIME);
    for (int i = 0; i < nrecs; i++) if (shown(&recs[i], d, 'C') && get(&recs[i], "sm", NULL)) {
        if (k < cap) q->arr[k] = (psample_t){ ts, pid_of(&recs[i]), (u32)getn(&recs[i], "sm", 0), (u32)getn(&recs[i], "memutil", 0), 0, 0, 0, 0 };
        k++;
    }
    q->count = k; OUT(!k ? NOTFOUND : k > cap ? SMALL : OK);
}
/* ---- accounting ---- */
#define ACCT_SIZE 4000
API nvmlDeviceGetAccountingMode(void *h, u32 *m) { IN(h); if (!get(d, "acct", NULL)) OUT(NOTSUP); *m = (u32)getn(d, "acct", 0); OUT(OK); }
API nvmlDeviceSetAccountingMode(void *h, u32 m) { IN(h); (void)m; OUT(geteuid() ? NOPERM : get(d, "acct", NULL) ? OK : NOTSUP); }
API nvmlDeviceGetAccountingBufferSize(void *h, u32 *n) { IN(h); if (!get(d, "acct", NULL)) OUT(NOTSUP); *n = ACCT_SIZE; OUT(OK); }
API nvmlDeviceGetAccountingPids(void *h, u32 *n, u32 *pids) {
    IN(h); if (!getn(d, "acct", 0)) OUT(NOTSUP);
    u32 k = 0, cap = pids ? *n : 0;
    for (int i = 0; i < nrecs; i++) if (!strcmp(recs[i].kind, "acct") && on(&recs[i], d)) { if (k < cap) pids[k] = pid_of(&recs[i]); k++; }
    *n = k; OUT(k > cap ? SMALL : OK);
}
API nvmlDeviceGetAccountingStats(void *h, u32 pid, acct_t *a) {
    IN(h); if (!getn(d, "acct", 0)) OUT(NOTSUP);
    for (int i = 0; i < nrecs; i++) {
        const rec_t *r = &recs[i];
        if (strcmp(r->kind, "acct") || !on(r, d) || pid_of(r) != pid) continue;
        u32 run = (u32)getn(r, "running", (u64)alive((u32)getn(r, "pid", 0), 0));
        *a = (acct_t){ run ? NA32 : (u32)getn(r, "util", 0), run ? NA32 : (u32)getn(r, "memutil", 0), getn(r, "maxmem", 0),
                       run ? 0 : getn(r, "time", 0), getn(r, "start", 0), run, {0} };
        OUT(OK);
    }
    OUT(NOTFOUND);
}
/* ---- modes and MIG ---- */
API nvmlDeviceGetComputeMode(void *h, u32 *m) { IN(h); *m = (u32)getn(d, "mode", 0); OUT(OK); }
API nvmlDeviceGetPersistenceMode(void *h, u32 *m) { IN(h); *m = (u32)getn(d, "persist", 1); OUT(OK); }
API nvmlDeviceGetMigMode(void *h, u32 *c, u32 *p) { IN(h); if (!get(d, "migmode", NULL)) OUT(NOTSUP); *c = *p = (u32)getn(d, "migmode", 0); OUT(OK); }
API nvmlDeviceGetMaxMigDeviceCount(void *h, u32 *n) { IN(h); *n = get(d, "migmode", NULL) ? 7 : 0; OUT(OK); }
API nvmlDeviceGetMigDeviceHandleByIndex(void *h, u32 i, void **o) {
    IN(h);
    for (int j = ngpu; j < ndev; j++) if (gpu_of(devs[j]) == gpu_of(d) && getn(devs[j], "index", 0) == i) { *o = &slots[j]; OUT(OK); }
    OUT(NOTFOUND); /* holes are normal: a client must go on to the next index */
}
API nvmlDeviceGetDeviceHandleFromMigDeviceHandle(void *h, void **o) { IN(h); if (!is_mig(d)) OUT(INVALID); *o = &slots[gpu_of(d)]; OUT(OK); }
API nvmlDeviceIsMigDeviceHandle(void *h, u32 *y) { IN(h); *y = (u32)is_mig(d); OUT(OK); }
API nvmlDeviceGetGpuInstanceId(void *h, u32 *i) { IN(h); if (!is_mig(d)) OUT(NOTSUP); *i = (u32)getn(d, "gi", 0); OUT(OK); }
API nvmlDeviceGetComputeInstanceId(void *h, u32 *i) { IN(h); if (!is_mig(d)) OUT(NOTSUP); *i = (u32)getn(d, "ci", 0); OUT(OK); }
/* ---- placement and health ---- */
API nvmlDeviceGetCudaComputeCapability(void *h, int *a, int *b) { IN(h); *a = 8; *b = 0; sscanf(get(d, "cc", "8.0"), "%d.%d", a, b); OUT(OK); }
API nvmlDeviceGetNumaNodeId(void *h, int *n) { IN(h); if (!get(d, "numa", NULL)) OUT(NOTSUP); *n = (int)getn(d, "numa", 0); OUT(OK); }
API nvmlDeviceGetCpuAffinity(void *h, u32 n, unsigned long *set) { IN(h); memset(set, 0, n * sizeof *set); if (n) set[0] = getn(d, "cpus", 3); OUT(OK); }
static const rec_t *pair(const char *kind, int a, int b) { /* `link a=0 b=1 level=20 nvlink=1 p2p=0` */
    for (int i = 0; i < nrecs; i++) if (!strcmp(recs[i].kind, kind)) {
        int x = (int)getn(&recs[i], "a", 99), y = (int)getn(&recs[i], "b", 99);
        if ((x == a && y == b) || (x == b && y == a)) return &recs[i];
    }
    return NULL;
}
API nvmlDeviceGetTopologyCommonAncestor(void *h, void *g, u32 *l) {
    IN(h); int j = idx(g); if (j < 0) OUT(INVALID);
    *l = j == idx(h) ? 0 : (u32)getn(pair("link", idx(h), j), "level", 50); OUT(OK);
}
API nvmlDeviceGetP2PStatus(void *h, void *g, u32 cap, u32 *s) {
    IN(h); const rec_t *p = pair("link", idx(h), idx(g));
    *s = cap == 2 ? (getn(p, "nvlink", 0) ? 0 : 5) : (u32)getn(p, "p2p", p ? 0 : 5); OUT(OK);
}
API nvmlDeviceGetNvLinkState(void *h, u32 link, u32 *on_) { IN(h); if (link >= getn(d, "nvlinks", 0)) OUT(NOTSUP); *on_ = 1; OUT(OK); }
API nvmlDeviceGetRemappedRows(void *h, u32 *c, u32 *u, u32 *p, u32 *f) {
    IN(h); const char *s = get(d, "remap", NULL); if (!s) OUT(NOTSUP);
    *c = *u = *p = *f = 0; sscanf(s, "%u,%u,%u,%u", c, u, p, f); OUT(OK);
}
API nvmlDeviceGetTotalEccErrors(void *h, u32 kind, u32 since, u64 *n) { /* kind 1: uncorrected */
    IN(h); (void)since; const char *s = get(d, kind ? "ecc" : "ecc_corrected", get(d, "ecc", NULL) ? "0" : NULL);
    if (!s) OUT(NOTSUP);
    *n = num(s); OUT(OK);
}
API nvmlDeviceGetEccMode(void *h, u32 *c, u32 *p) { IN(h); if (!get(d, "ecc", NULL)) OUT(NOTSUP); *c = *p = 1; OUT(OK); }
API nvmlDeviceGetAddressingMode(void *h, mode_t1 *m) { IN(h); if (!get(d, "addressing", NULL)) OUT(NOTSUP); m->value = (u32)getn(d, "addressing", 0); OUT(OK); }
API nvmlDeviceGetFieldValues(void *h, int n, field_t *f) {
    IN(h);
    for (int i = 0; i < n; i++) { /* 230: recovery action; 4, 6: uncorrected ECC; 144, 145: remapped rows */
        const char *s = NULL; u32 r[4] = { 0 };
        if (f[i].id == 230) s = get(d, "recovery", NULL);
        if (f[i].id == 4 || f[i].id == 6) s = get(d, "ecc", NULL);
        if (f[i].id >= 142 && f[i].id <= 145 && (s = get(d, "remap", NULL))) sscanf(s, "%u,%u,%u,%u", r, r + 1, r + 2, r + 3);
        f[i].at = (long long)now_us(CLOCK_REALTIME); f[i].took = 0; f[i].rc = s ? OK : NOTSUP;
        f[i].type = f[i].id == 4 || f[i].id == 6 ? 3 : 1; /* unsigned long long, unsigned int */
        f[i].value = !s ? 0 : f[i].id >= 142 && f[i].id <= 145 ? r[f[i].id - 142] : num(s);
    }
    OUT(OK);
}
API nvmlDeviceGetCurrentClocksEventReasons(void *h, u64 *r) { IN(h); *r = getn(d, "reasons", 1); OUT(OK); }
ALIAS(nvmlDeviceGetCurrentClocksThrottleReasons, nvmlDeviceGetCurrentClocksEventReasons);
#define SCALAR(fn, key, dflt) API fn(void *h, u32 *v) { IN(h); if (!get(d, key, dflt)) OUT(NOTSUP); *v = (u32)num(get(d, key, dflt)); OUT(OK); }
SCALAR(nvmlDeviceGetPowerUsage, "power", "52000") SCALAR(nvmlDeviceGetEnforcedPowerLimit, "plimit", "300000")
SCALAR(nvmlDeviceGetPowerManagementLimit, "plimit", "300000") SCALAR(nvmlDeviceGetFanSpeed, "fan", NULL)
SCALAR(nvmlDeviceGetPerformanceState, "pstate", "0") SCALAR(nvmlDeviceGetDisplayActive, "display", "0") SCALAR(nvmlDeviceGetDisplayMode, "display", "0")
API nvmlDeviceGetTemperature(void *h, u32 sensor, u32 *v) { IN(h); (void)sensor; *v = (u32)getn(d, "temp", 34); OUT(OK); }
API nvmlDeviceGetEncoderUtilization(void *h, u32 *v, u32 *us) { IN(h); *v = 0; *us = 167000; OUT(OK); }
API nvmlDeviceGetDecoderUtilization(void *h, u32 *v, u32 *us) { IN(h); *v = 0; *us = 167000; OUT(OK); }
/* ---- events: one per `xid gpu=N code=N` line, each delivered once per set ---- */
typedef struct { int seen; u64 mask; } evset_t;
API nvmlEventSetCreate(void **s) { /* what happened before is not told */
    IN0; evset_t *e = calloc(1, sizeof *e); if (!e) OUT(UNKNOWN);
    for (int i = 0; i < nrecs; i++) e->seen += !strcmp(recs[i].kind, "xid");
    *s = e; OUT(OK);
}
API nvmlEventSetFree(void *s) { free(s); return OK; }
API nvmlDeviceRegisterEvents(void *h, u64 types, void *s) { (void)types; IN(h); ((evset_t *)s)->mask |= 1ULL << idx(h); OUT(OK); }
API nvmlDeviceGetSupportedEventTypes(void *h, u64 *t) { IN(h); *t = 0x1f; OUT(OK); }
API nvmlEventSetWait_v2(void *set, event_t *e, u32 ms) {
    evset_t *s = set;
    for (u32 spent = 0;; spent += 10) {
        IN0; int k = 0;
        for (int i = 0; i < nrecs; i++) if (!strcmp(recs[i].kind, "xid") && k++ == s->seen) {
            s->seen++; u64 g = getn(&recs[i], "gpu", 0);
            if (!(s->mask >> g & 1)) continue;
            *e = (event_t){ &slots[g], 8, getn(&recs[i], "code", 79), (u32)getn(&recs[i], "gi", NA32), (u32)getn(&recs[i], "ci", NA32) };
            OUT(OK);
        }
        leave(OK);
        if (spent >= ms) return TIMEOUT;
        struct timespec t = { 0, 10 * 1000000 }; nanosleep(&t, NULL);
    }
}
ALIAS(nvmlEventSetWait, nvmlEventSetWait_v2);
/* ---- present in every recent driver, so present here, but with nothing to say ---- */
#define STUB(n) API n(void) { return NOTSUP; }
STUB(nvmlDeviceGetConfComputeMemSizeInfo) STUB(nvmlDeviceGetRunningProcessDetailList) STUB(nvmlDeviceGetClockInfo)
STUB(nvmlDeviceGetMaxClockInfo) STUB(nvmlDeviceGetPcieThroughput)
STUB(nvmlDeviceGetMemoryErrorCounter) STUB(nvmlDeviceGetDriverModel)
STUB(nvmlDeviceGetRetiredPagesPendingStatus) STUB(nvmlDeviceGetPcieReplayCounter) STUB(nvmlDeviceGetTotalEnergyConsumption)
