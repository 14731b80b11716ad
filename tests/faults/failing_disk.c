/* A disk that fails: counts the storage operations of a process below a folder and lets the N-th one fail.
 *
 * Preloaded (LD_PRELOAD). Armed by a call of disk_arm, or in the environment:
 *     FAILING_DISK="prefix:at:mode:errno:sticky"     with the numbers that disk_arm takes
 *
 * mode: 0 the operation fails with errno; 1 a write takes half of what it is given, and the next one fails;
 *       2 the process is killed after it, which is before the next.
 * sticky: all later operations fail as well (a full disk stays full), but for those that free space under ENOSPC.
 * at = 0: count only.
 *
 * Counted: open and openat that create or truncate, creat, write, pwrite, fsync, fdatasync, rename*, unlink*, rmdir,
 * mkdir*, ftruncate*. Reading is not.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <unistd.h>

enum { FAIL, SHORT, KILL };
static char prefix[PATH_MAX];
static long at, count;
static int mode, error, sticky, armed;

void disk_arm(const char *folder, long n, int how, int number, int stays) {
    snprintf(prefix, sizeof prefix, "%s", folder);
    at = n; mode = how; error = number; sticky = stays; count = 0; armed = 1;
}
void disk_disarm(void) { armed = 0; }
long disk_count(void) { return count; }

__attribute__((constructor)) static void from_environment(void) {
    const char *text = getenv("FAILING_DISK");
    char folder[PATH_MAX];
    long n;
    int how, number, stays;
    if (text && sscanf(text, "%4095[^:]:%ld:%d:%d:%d", folder, &n, &how, &number, &stays) == 5)
        disk_arm(folder, n, how, number, stays);
}

static int below(const char *path) { return strncmp(path, prefix, strlen(prefix)) == 0; }

static int fd_below(int fd) {
    char link[64], path[PATH_MAX];
    if (!armed) return 0;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, path, sizeof path - 1);
    if (length < 0) return 0;
    path[length] = 0;
    return below(path);
}

static int path_below(int dirfd, const char *path) {
    char full[PATH_MAX];
    if (!armed || !path) return 0;
    if (path[0] == '/') return below(path);
    if (dirfd != AT_FDCWD) return fd_below(dirfd);
    return getcwd(full, sizeof full) && below(full);
}

/* Whether the operation is to fail; frees: it gives space back, which a full disk allows. */
static int fails(int counts, int frees) {
    if (!counts) return 0;
    count++;
    if (!at || count < at) return 0;
    if (count == at) {
        if (mode == KILL) return 0;
    } else if (!sticky || mode > SHORT || (frees && error == ENOSPC)) {
        return 0;
    }
    errno = error;
    return 1;
}

static void after(int counts) {
    if (counts && at && count == at && mode == KILL) kill(getpid(), SIGKILL);
}

#define REAL(name) (__typeof__(&name))dlsym(RTLD_NEXT, #name)
#define OPERATION(type, name, parameters, arguments, counted, frees)  \
    type name parameters {                                            \
        static type(*real) parameters;                                \
        if (!real) real = (type(*) parameters)dlsym(RTLD_NEXT, #name); \
        int counts = (counted);                                       \
        if (fails(counts, frees)) return -1;                          \
        type result = real arguments;                                 \
        int kept = errno;                                             \
        after(counts);                                                \
        errno = kept;                                                 \
        return result;                                                \
    }

OPERATION(int, fsync, (int fd), (fd), fd_below(fd), 0)
OPERATION(int, fdatasync, (int fd), (fd), fd_below(fd), 0)
OPERATION(int, ftruncate, (int fd, off_t size), (fd, size), fd_below(fd), 1)
OPERATION(int, ftruncate64, (int fd, off64_t size), (fd, size), fd_below(fd), 1)
OPERATION(int, rename, (const char *from, const char *to), (from, to), path_below(AT_FDCWD, to), 0)
OPERATION(int, renameat, (int a, const char *from, int b, const char *to), (a, from, b, to), path_below(b, to), 0)
OPERATION(int, renameat2, (int a, const char *from, int b, const char *to, unsigned f), (a, from, b, to, f),
          path_below(b, to), 0)
OPERATION(int, unlink, (const char *path), (path), path_below(AT_FDCWD, path), 1)
OPERATION(int, unlinkat, (int fd, const char *path, int flags), (fd, path, flags), path_below(fd, path), 1)
OPERATION(int, rmdir, (const char *path), (path), path_below(AT_FDCWD, path), 1)
OPERATION(int, mkdir, (const char *path, mode_t m), (path, m), path_below(AT_FDCWD, path), 0)
OPERATION(int, mkdirat, (int fd, const char *path, mode_t m), (fd, path, m), path_below(fd, path), 0)

/* A write is short the first time: half of it is done, as by a disk that is getting full. */
static size_t portion(int counts, size_t size) {
    return counts && mode == SHORT && at && count + 1 == at && size > 1 ? size / 2 : 0;
}
#define WRITE(name, parameters, half, whole)                                    \
    ssize_t name parameters {                                                   \
        static ssize_t(*real) parameters;                                       \
        if (!real) real = (ssize_t(*) parameters)dlsym(RTLD_NEXT, #name);       \
        int counts = fd_below(fd);                                              \
        size_t part = portion(counts, size);                                    \
        if (part) { at++; count++; mode = FAIL; return real half; }                        \
        if (fails(counts, 0)) return -1;                                        \
        ssize_t result = real whole;                                            \
        int kept = errno;                                                       \
        after(counts);                                                          \
        errno = kept;                                                           \
        return result;                                                          \
    }
WRITE(write, (int fd, const void *data, size_t size), (fd, data, part), (fd, data, size))
WRITE(pwrite, (int fd, const void *data, size_t size, off_t o), (fd, data, part, o), (fd, data, size, o))
WRITE(pwrite64, (int fd, const void *data, size_t size, off64_t o), (fd, data, part, o), (fd, data, size, o))

#define CHANGES(flags) ((flags) & (O_CREAT | O_TRUNC))
#define OPEN(name, parameters, dirfd, arguments)                                              \
    int name parameters {                                                                     \
        static __typeof__(&name) real;                                                        \
        if (!real) real = REAL(name);                                                         \
        mode_t m = 0;                                                                         \
        if (flags & (O_CREAT | O_TMPFILE)) {                                                  \
            va_list rest;                                                                     \
            va_start(rest, flags);                                                            \
            m = va_arg(rest, mode_t);                                                         \
            va_end(rest);                                                                     \
        }                                                                                     \
        int counts = CHANGES(flags) && path_below(dirfd, path);                               \
        if (fails(counts, 0)) return -1;                                                      \
        int result = real arguments;                                                          \
        int kept = errno;                                                                     \
        after(counts);                                                                        \
        errno = kept;                                                                         \
        return result;                                                                        \
    }
OPEN(open, (const char *path, int flags, ...), AT_FDCWD, (path, flags, m))
OPEN(open64, (const char *path, int flags, ...), AT_FDCWD, (path, flags, m))
OPEN(openat, (int fd, const char *path, int flags, ...), fd, (fd, path, flags, m))
OPEN(openat64, (int fd, const char *path, int flags, ...), fd, (fd, path, flags, m))

int creat(const char *path, mode_t m) { return open(path, O_CREAT | O_WRONLY | O_TRUNC, m); }
