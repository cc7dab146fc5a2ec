// Preloaded into a program under test: notes what a disk surely has of the folder DISK. Each fsync or fdatasync of a file copies its content,
// and of a folder its entries, to NOTES, by inode. Power loss leaves that and nothing else. A sync of a path that contains DROPPED_SYNC is
// left out, as if the program did not ask for it.
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

static void copy_content(const char *source, FILE *out) {
    FILE *in = fopen(source, "r");
    char block[1 << 16];
    size_t num;
    while (in && (num = fread(block, 1, sizeof block, in)) > 0) fwrite(block, 1, num, out);
    if (in) fclose(in);
}

static void list_entries(const char *source, FILE *out) {
    DIR *folder = opendir(source);
    struct dirent *entry;
    while (folder && (entry = readdir(folder))) {
        if (strcmp(entry->d_name, ".") && strcmp(entry->d_name, ".."))
            fprintf(out, "%llu %c %s\n", (unsigned long long)entry->d_ino, entry->d_type == DT_DIR ? 'd' : 'f', entry->d_name);
    }
    if (folder) closedir(folder);
}

static void note(int fd) {
    const char *disk = getenv("DISK"), *notes = getenv("NOTES"), *dropped = getenv("DROPPED_SYNC");
    char link[64], path[PATH_MAX], aside[PATH_MAX], place[PATH_MAX];
    struct stat state;
    if (!disk || !notes || fstat(fd, &state)) return;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, path, sizeof path - 1);
    if (length < 0) return;
    path[length] = 0;
    if (strncmp(path, disk, strlen(disk)) || (dropped && *dropped && strstr(path, dropped))) return;
    unsigned long long inode = state.st_ino;
    snprintf(aside, sizeof aside, "%s/.%llu-%d-%ld", notes, inode, getpid(), syscall(SYS_gettid));
    snprintf(place, sizeof place, "%s/%llu", notes, inode);
    FILE *out = fopen(aside, "w");
    if (!out) return;
    if (S_ISDIR(state.st_mode)) list_entries(link, out);
    else copy_content(link, out);
    fclose(out);
    rename(aside, place);
}

int fsync(int fd) {
    int result = (int)syscall(SYS_fsync, fd);
    if (!result) note(fd);
    return result;
}

int fdatasync(int fd) {
    int result = (int)syscall(SYS_fdatasync, fd);
    if (!result) note(fd);
    return result;
}
