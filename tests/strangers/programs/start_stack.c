// asks: do argc, argv, environment and auxiliary vector arrive where the kernel puts them, through a probed
// _start? (REG_19)
// argv: one two three
#include "stranger.h"
#include <elf.h>
#include <sys/auxv.h>

int main(int argc, char **argv, char **environment) {
    printf("argc %d\n", argc);
    for (int i = 1; i <= argc; i++) printf("argv %s\n", argv[i] ? argv[i] : "-");
    // The tracer's own variables are no more than these.
    for (char **p = environment; *p; p++)
        if (strncmp(*p, "STRANGER=", 9) != 0) printf("environment %s\n", *p);
    char **end = environment;
    while (*end) end++;
    for (Elf64_auxv_t *entry = (Elf64_auxv_t *)(end + 1); entry->a_type; entry++) {
        // An entry that means nothing, says the ABI.
        if (entry->a_type == AT_IGNORE) continue;
        int same = entry->a_type == AT_PHNUM || entry->a_type == AT_UID || entry->a_type == AT_PAGESZ || entry->a_type == AT_SECURE;
        printf("auxv %lu %lu\n", entry->a_type, same ? entry->a_un.a_val : 0);
    }
    printf("argv[0] is at AT_EXECFN: %d\n", strcmp((char *)getauxval(AT_EXECFN), argv[0]) == 0);
    return argc;
}
