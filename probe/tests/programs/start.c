/* What stands on the stack at the start: the arguments, the environment, and behind it the auxiliary
 * vector, as everybody finds * it who has no libc. */
#include <elf.h>
#include <link.h>
#include <stdio.h>

int main(int argc, char **argv, char **environment) {
    printf("%d arguments, %s\n", argc, argv[1]);
    char **end = environment;
    for (; *end; end++) printf("%s\n", *end);
    const ElfW(auxv_t) *entry = (const ElfW(auxv_t) *)(end + 1);
    for (; entry->a_type != AT_NULL; entry++)
        if (entry->a_type != AT_IGNORE) printf("entry %lu\n", (unsigned long)entry->a_type);
    return 0;
}
