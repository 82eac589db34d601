// Calls a function of a library that it loads when it runs.
#include <dlfcn.h>
#include <stdlib.h>

int main(int argc, char **argv)
{
    void *library = dlopen("libm.so.6", RTLD_NOW);
    double (*less)(double, double) = library ? (double (*)(double, double))dlsym(library, "fdim") : 0;
    if (argc != 2 || !less)
        return 2;
    double sum = 0;
    for (int i = 0; i < atoi(argv[1]); i++)
        sum += less(5, 2);
    return sum != 3.0 * atoi(argv[1]);
}
