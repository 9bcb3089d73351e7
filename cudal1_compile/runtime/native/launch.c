/* launch.c: the call of a loaded GPU kernel from Python, in a fraction of a microsecond.
 *
 * Launcher(n_tensors, n_sizes, resolve, slow, failed, cuLaunchKernel, cuMemsetD8Async)(*tensors, *sizes, stream)
 *
 * Torch-free: a tensor is anything with data_ptr(), or an int address. The driver's functions arrive as addresses,
 * so this file builds and imports without CUDA. A call allocates nothing and waits for nothing.
 *   resolve(sizes) -> (launches, zeroed)   for sizes not seen in the call before: see read_table
 *   slow(*args)                            when a pointer is not aligned to 16 bytes
 *   failed(code, kernel index) -> bool     raises, or returns True to try that launch again
 */
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>
#include <string.h>
#include <structmember.h>

#define MAX_TENSORS 96
#define MAX_SIZES 16
#define ALIGNMENT 16

typedef int (*LaunchFn)(void*, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void*, void**, void**);
typedef int (*MemsetFn)(uint64_t, unsigned char, size_t, void*);

typedef struct {
  void* function;
  unsigned shape[7]; /* grid, block, shared bytes */
  int n_args;
  int arg[MAX_TENSORS]; /* numbers of tensors */
} Launch;
typedef struct {
  int tensor;
  size_t bytes;
} Zeroed;

typedef struct {
  PyObject_HEAD
  vectorcallfunc vectorcall;
  int n_tensors, n_sizes, n_launches, n_zeroed, resolved;
  int sizes[MAX_SIZES];
  Launch launches[MAX_LAUNCHES];
  Zeroed zeroed[MAX_SCRATCH];
  LaunchFn launch;
  MemsetFn memset;
  PyObject *resolve, *slow, *failed;
} Launcher;

static PyObject* data_ptr_name;

static int address_of(PyObject* tensor, uint64_t* address) {
  if (PyLong_CheckExact(tensor)) {
    *address = PyLong_AsUnsignedLongLong(tensor);
    return PyErr_Occurred() ? -1 : 0;
  }
  PyObject* value = PyObject_CallMethodNoArgs(tensor, data_ptr_name);
  if (!value) return -1;
  *address = PyLong_AsUnsignedLongLong(value);
  Py_DECREF(value);
  return PyErr_Occurred() ? -1 : 0;
}

static int read_tuple(PyObject* object) {
  if (PyTuple_Check(object)) return 0;
  PyErr_Format(PyExc_TypeError, "a launch table of %s, expected a tuple", Py_TYPE(object)->tp_name);
  return -1;
}

static int read_launch(PyObject* row, int n_tensors, Launch* out) {
  unsigned long long function;
  PyObject* args;
  unsigned* s = out->shape;
  if (read_tuple(row) < 0) return -1;
  if (!PyArg_ParseTuple(row, "KIIIIIIIO!", &function, s, s + 1, s + 2, s + 3, s + 4, s + 5, s + 6, &PyTuple_Type, &args))
    return -1;
  out->function = (void*)(uintptr_t)function;
  out->n_args = (int)PyTuple_GET_SIZE(args);
  if (out->n_args > MAX_TENSORS) return PyErr_SetString(PyExc_ValueError, "too many arguments of one kernel"), -1;
  for (int i = 0; i < out->n_args; i++) {
    long which = PyLong_AsLong(PyTuple_GET_ITEM(args, i));
    if (which < 0 || which >= n_tensors) return PyErr_SetString(PyExc_ValueError, "argument out of range"), -1;
    out->arg[i] = (int)which;
  }
  return 0;
}

/* table: (((function, gx, gy, gz, bx, by, bz, shared, (tensor, ...)), ...), ((tensor, bytes), ...)) */
static int read_table(Launcher* self, PyObject* table) {
  PyObject *launches, *zeroed;
  if (read_tuple(table) < 0) return -1;
  if (!PyArg_ParseTuple(table, "O!O!", &PyTuple_Type, &launches, &PyTuple_Type, &zeroed)) return -1;
  Py_ssize_t n_launches = PyTuple_GET_SIZE(launches), n_zeroed = PyTuple_GET_SIZE(zeroed);
  if (n_launches > MAX_LAUNCHES || n_zeroed > MAX_SCRATCH)
    return PyErr_SetString(PyExc_ValueError, "too many launches or zeroed buffers"), -1;
  for (Py_ssize_t i = 0; i < n_launches; i++)
    if (read_launch(PyTuple_GET_ITEM(launches, i), self->n_tensors, &self->launches[i]) < 0) return -1;
  for (Py_ssize_t i = 0; i < n_zeroed; i++) {
    Py_ssize_t bytes;
    if (read_tuple(PyTuple_GET_ITEM(zeroed, i)) < 0) return -1;
    if (!PyArg_ParseTuple(PyTuple_GET_ITEM(zeroed, i), "in", &self->zeroed[i].tensor, &bytes)) return -1;
    if (self->zeroed[i].tensor < 0 || self->zeroed[i].tensor >= self->n_tensors || bytes < 0)
      return PyErr_SetString(PyExc_ValueError, "zeroed buffer out of range"), -1;
    self->zeroed[i].bytes = (size_t)bytes;
  }
  self->n_launches = (int)n_launches;
  self->n_zeroed = (int)n_zeroed;
  self->resolved = 1;
  return 0;
}

static int resolve(Launcher* self, const int* sizes) {
  if (self->resolved && memcmp(sizes, self->sizes, sizeof(int) * (size_t)self->n_sizes) == 0) return 0;
  PyObject* tuple = PyTuple_New(self->n_sizes);
  if (!tuple) return -1;
  for (int i = 0; i < self->n_sizes; i++) {
    PyObject* size = PyLong_FromLong(sizes[i]);
    if (!size) {
      Py_DECREF(tuple);
      return -1;
    }
    PyTuple_SET_ITEM(tuple, i, size);
  }
  PyObject* table = PyObject_CallOneArg(self->resolve, tuple);
  Py_DECREF(tuple);
  if (!table) return -1;
  self->resolved = 0; /* a table that is read in part is none */
  int bad = read_table(self, table);
  Py_DECREF(table);
  if (bad == 0) memcpy(self->sizes, sizes, sizeof(int) * (size_t)self->n_sizes);
  return bad;
}

/* 1: try again; 0: impossible, failed() must raise; -1: it has raised */
static int report(Launcher* self, int code, int which) {
  PyObject* again = PyObject_CallFunction(self->failed, "ii", code, which);
  if (!again) return -1;
  int yes = PyObject_IsTrue(again);
  Py_DECREF(again);
  if (yes == 0) PyErr_Format(PyExc_RuntimeError, "CUDA error %d in launch %d", code, which);
  return yes > 0 ? 1 : -1;
}

static int zero_scratch(Launcher* self, const uint64_t* address, void* stream) {
  for (int i = 0; i < self->n_zeroed; i++) {
    const Zeroed* z = &self->zeroed[i];
    int code;
    while ((code = self->memset(address[z->tensor], 0, z->bytes, stream)) != 0)
      if (report(self, code, -1) < 0) return -1;
  }
  return 0;
}

static int launch_all(Launcher* self, uint64_t* address, int* sizes, void* stream) {
  void* params[MAX_TENSORS + MAX_SIZES];
  for (int i = 0; i < self->n_launches; i++) {
    const Launch* l = &self->launches[i];
    const unsigned* s = l->shape;
    for (int k = 0; k < l->n_args; k++) params[k] = &address[l->arg[k]];
    for (int k = 0; k < self->n_sizes; k++) params[l->n_args + k] = &sizes[k];
    int code;
    while ((code = self->launch(l->function, s[0], s[1], s[2], s[3], s[4], s[5], s[6], stream, params, NULL)) != 0)
      if (report(self, code, i) < 0) return -1;
  }
  return 0;
}

static PyObject* launcher_call(PyObject* object, PyObject* const* args, size_t flags, PyObject* keywords) {
  Launcher* self = (Launcher*)object;
  int n = (int)PyVectorcall_NARGS(flags), n_tensors = self->n_tensors, n_sizes = self->n_sizes;
  if (n != n_tensors + n_sizes + 1 || (keywords && PyTuple_GET_SIZE(keywords)))
    return PyErr_Format(PyExc_TypeError, "%d arguments given, expected %d tensors, %d sizes and a stream", n, n_tensors,
                        n_sizes);
  uint64_t address[MAX_TENSORS];
  int sizes[MAX_SIZES];
  for (int i = 0; i < n_tensors; i++) {
    if (address_of(args[i], &address[i]) < 0) return NULL;
    if (address[i] % ALIGNMENT) return PyObject_Vectorcall(self->slow, args, flags & ~PY_VECTORCALL_ARGUMENTS_OFFSET, NULL);
  }
  for (int i = 0; i < n_sizes; i++) {
    long size = PyLong_AsLong(args[n_tensors + i]);
    if (size == -1 && PyErr_Occurred()) return NULL;
    if (size < 0 || size > INT32_MAX) return PyErr_Format(PyExc_ValueError, "size %ld: expected an int of 32 bits", size);
    sizes[i] = (int)size;
  }
  void* stream = (void*)(uintptr_t)PyLong_AsUnsignedLongLong(args[n - 1]);
  if (PyErr_Occurred()) return NULL;
  if (resolve(self, sizes) < 0 || zero_scratch(self, address, stream) < 0) return NULL;
  if (launch_all(self, address, sizes, stream) < 0) return NULL;
  Py_RETURN_NONE;
}

static PyObject* launcher_new(PyTypeObject* type, PyObject* args, PyObject* keywords) {
  int n_tensors, n_sizes;
  PyObject *resolve, *slow, *failed;
  unsigned long long launch, memset_address;
  (void)keywords;
  if (!PyArg_ParseTuple(args, "iiOOOKK", &n_tensors, &n_sizes, &resolve, &slow, &failed, &launch, &memset_address))
    return NULL;
  if (n_tensors < 0 || n_tensors > MAX_TENSORS || n_sizes < 0 || n_sizes > MAX_SIZES)
    return PyErr_Format(PyExc_ValueError, "%d tensors and %d sizes, at most %d and %d", n_tensors, n_sizes, MAX_TENSORS,
                        MAX_SIZES);
  Launcher* self = (Launcher*)type->tp_alloc(type, 0);
  if (!self) return NULL;
  self->vectorcall = launcher_call;
  self->n_tensors = n_tensors;
  self->n_sizes = n_sizes;
  self->launch = (LaunchFn)(uintptr_t)launch;
  self->memset = (MemsetFn)(uintptr_t)memset_address;
  self->resolve = Py_NewRef(resolve);
  self->slow = Py_NewRef(slow);
  self->failed = Py_NewRef(failed);
  return (PyObject*)self;
}

static int launcher_traverse(PyObject* object, visitproc visit, void* arg) {
  Launcher* self = (Launcher*)object;
  Py_VISIT(self->resolve);
  Py_VISIT(self->slow);
  Py_VISIT(self->failed);
  return 0;
}
static int launcher_clear(PyObject* object) {
  Launcher* self = (Launcher*)object;
  Py_CLEAR(self->resolve);
  Py_CLEAR(self->slow);
  Py_CLEAR(self->failed);
  return 0;
}
static void launcher_dealloc(PyObject* object) {
  PyObject_GC_UnTrack(object);
  launcher_clear(object);
  Py_TYPE(object)->tp_free(object);
}

static PyTypeObject launcher_type = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "cudal1_launch.Launcher",
    .tp_basicsize = sizeof(Launcher),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_VECTORCALL | Py_TPFLAGS_HAVE_GC,
    .tp_vectorcall_offset = offsetof(Launcher, vectorcall),
    .tp_call = PyVectorcall_Call,
    .tp_new = launcher_new,
    .tp_traverse = launcher_traverse,
    .tp_clear = launcher_clear,
    .tp_dealloc = launcher_dealloc,
    .tp_doc = "A loaded kernel; see launch.c.",
};
static PyModuleDef module = {PyModuleDef_HEAD_INIT, .m_name = "cudal1_launch", .m_size = -1};

PyMODINIT_FUNC PyInit_cudal1_launch(void) {
  data_ptr_name = PyUnicode_InternFromString("data_ptr");
  if (!data_ptr_name || PyType_Ready(&launcher_type) < 0) return NULL;
  PyObject* found = PyModule_Create(&module);
  if (!found) return NULL;
  if (PyModule_AddObjectRef(found, "Launcher", (PyObject*)&launcher_type) < 0) {
    Py_DECREF(found);
    return NULL;
  }
  return found;
}
