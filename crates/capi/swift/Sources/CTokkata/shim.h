#include <tokkata.h>
