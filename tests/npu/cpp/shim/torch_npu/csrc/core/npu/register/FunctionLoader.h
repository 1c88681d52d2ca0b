// Stand-in: a CANN function is taken from the library linked in. Our own text, for the tests only.
#pragma once
#define GET_FUNC(name) (&name)
#define TORCH_NPU_GET_FUNC(name) (&name)
