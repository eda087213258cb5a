// Owns the Python face of the native kernels: `instruction_sets`, `create_program`, `run_program`,
// `start_program`, `run_operations`, `program_rows`, `choose_tokens`, `penalise_rows`.
//
// Everything crosses as flat arrays of int64 (pointers included); kernels/native_library.py and
// its callers build them and keep alive what they point to. The lock of the interpreter is released while running.
#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x030b0000
#include <Python.h>

#include <cstring>
#include <exception>
#include <new>
#include <system_error>

#include "program.h"
#include "sampling.h"

namespace {

using mizzen::Kernels;
using mizzen::Program;

constexpr const char* kCapsule = "mizzen.Program";

const Kernels* find_kernels(const char* name) {
  const Kernels* all[] = {mizzen::kernels_avx512(), mizzen::kernels_avx2(), mizzen::kernels_portable()};
  for (const Kernels* kernels : all) {
    if (kernels != nullptr && std::strcmp(kernels->name, name) == 0) return kernels;
  }
  return nullptr;
}

// A view of an object's bytes as int64; sets an exception when it is something else.
class Words {
 public:
  Words(PyObject* object, const char* what) {
    if (PyObject_GetBuffer(object, &view_, PyBUF_SIMPLE) != 0) return;
    is_held_ = true;
    if (view_.len % 8 != 0) {
      PyErr_Format(PyExc_ValueError, "%s: %zd bytes are not a whole number of int64", what, view_.len);
      return;
    }
    is_valid_ = true;
  }
  ~Words() {
    if (is_held_) PyBuffer_Release(&view_);
  }
  Words(const Words&) = delete;
  Words& operator=(const Words&) = delete;

  bool is_valid() const { return is_valid_; }
  const int64_t* data() const { return static_cast<const int64_t*>(view_.buf); }
  size_t size() const { return static_cast<size_t>(view_.len) / 8; }

  // Records of this many bytes each; false with an exception set when it does not divide.
  template <typename Record>
  bool copy_to(std::vector<Record>& records, const char* what) const {
    if (view_.len % sizeof(Record) != 0) {
      PyErr_Format(PyExc_ValueError, "%s: %zd bytes are not records of %zu", what, view_.len, sizeof(Record));
      return false;
    }
    records.resize(view_.len / sizeof(Record));
    if (view_.len > 0) std::memcpy(static_cast<void*>(records.data()), view_.buf, view_.len);
    return true;
  }

 private:
  Py_buffer view_{};
  bool is_held_ = false;
  bool is_valid_ = false;
};

void destroy_program(PyObject* capsule) {
  delete static_cast<Program*>(PyCapsule_GetPointer(capsule, kCapsule));
}

PyObject* instruction_sets(PyObject*, PyObject*) {
  PyObject* names = PyList_New(0);
  const Kernels* all[] = {mizzen::kernels_avx512(), mizzen::kernels_avx2(), mizzen::kernels_portable()};
  for (const Kernels* kernels : all) {
    if (names == nullptr || kernels == nullptr) continue;
    PyObject* name = PyUnicode_FromString(kernels->name);
    if (name == nullptr || PyList_Append(names, name) != 0) {
      Py_XDECREF(name);
      Py_DECREF(names);
      return nullptr;
    }
    Py_DECREF(name);
  }
  return names;
}

PyObject* create_program(PyObject*, PyObject* args) {
  const char* name;
  int num_threads;
  PyObject* objects[5];
  if (!PyArg_ParseTuple(args, "siOOOOO", &name, &num_threads, &objects[0], &objects[1], &objects[2],
                        &objects[3], &objects[4])) {
    return nullptr;
  }
  const Kernels* kernels = find_kernels(name);
  if (kernels == nullptr || num_threads < 1) {
    PyErr_Format(PyExc_ValueError, "instruction set %s with %d threads is not available", name, num_threads);
    return nullptr;
  }
  Words settings(objects[0], "settings"), layers(objects[1], "layers"), weights(objects[2], "weights"),
      widths(objects[3], "buffer widths"), operations(objects[4], "operations");
  if (!settings.is_valid() || !layers.is_valid() || !weights.is_valid() || !widths.is_valid() ||
      !operations.is_valid()) {
    return nullptr;
  }
  try {
    std::vector<mizzen::Settings> settings_list;
    std::vector<mizzen::Layer> layer_list;
    std::vector<mizzen::Weight> weight_list;
    std::vector<int64_t> width_list;
    std::vector<mizzen::Operation> operation_list;
    if (!settings.copy_to(settings_list, "settings") || !layers.copy_to(layer_list, "layers") ||
        !weights.copy_to(weight_list, "weights") || !widths.copy_to(width_list, "buffer widths") ||
        !operations.copy_to(operation_list, "operations")) {
      return nullptr;
    }
    if (settings_list.size() != 1) {
      PyErr_Format(PyExc_ValueError, "settings: %zu records, 1 is needed", settings_list.size());
      return nullptr;
    }
    Program* program = new Program(kernels, settings_list[0], std::move(layer_list),
                                   std::move(weight_list), std::move(width_list),
                                   std::move(operation_list), num_threads);
    PyObject* capsule = PyCapsule_New(program, kCapsule, destroy_program);
    if (capsule == nullptr) delete program;
    return capsule;
  } catch (const std::bad_alloc&) {
    return PyErr_NoMemory();
  } catch (const std::system_error& error) {
    PyErr_Format(PyExc_RuntimeError, "threads cannot be started: %s", error.what());
    return nullptr;
  }
}

Program* program_of(PyObject* capsule) {
  return static_cast<Program*>(PyCapsule_GetPointer(capsule, kCapsule));
}

// Call `work` without the interpreter's lock; returns None, or null with MemoryError set.
template <typename Work>
PyObject* run_unlocked(const Work& work) {
  bool is_out_of_memory = false;
  Py_BEGIN_ALLOW_THREADS
  try {
    work();
  } catch (const std::bad_alloc&) {
    is_out_of_memory = true;
  }
  Py_END_ALLOW_THREADS
  if (is_out_of_memory) return PyErr_NoMemory();
  Py_RETURN_NONE;
}

// Call `work(program, step)` with what the arguments name.
template <typename Work>
PyObject* with_step(PyObject* args, const Work& work) {
  PyObject* capsule;
  PyObject* step_object;
  if (!PyArg_ParseTuple(args, "OO", &capsule, &step_object)) return nullptr;
  Program* program = program_of(capsule);
  if (program == nullptr) return nullptr;
  Words words(step_object, "step");
  if (!words.is_valid()) return nullptr;
  if (words.size() * 8 != sizeof(mizzen::Step)) {
    PyErr_Format(PyExc_ValueError, "step: %zu words, %zu are needed", words.size(), sizeof(mizzen::Step) / 8);
    return nullptr;
  }
  mizzen::Step step;
  std::memcpy(&step, words.data(), sizeof(step));
  return run_unlocked([&] { work(*program, step); });
}

PyObject* run_program(PyObject*, PyObject* args) {
  return with_step(args, [](Program& program, const mizzen::Step& step) { program.run(step); });
}

PyObject* start_program(PyObject*, PyObject* args) {
  return with_step(args, [](Program& program, const mizzen::Step& step) { program.start(step); });
}

PyObject* run_operations(PyObject*, PyObject* args) {
  PyObject* capsule;
  long long first, after;
  if (!PyArg_ParseTuple(args, "OLL", &capsule, &first, &after)) return nullptr;
  Program* program = program_of(capsule);
  if (program == nullptr) return nullptr;
  if (first < 0 || first > after || after > program->num_operations()) {
    PyErr_Format(PyExc_ValueError, "operations %lld to %lld of %lld", first, after,
                 static_cast<long long>(program->num_operations()));
    return nullptr;
  }
  return run_unlocked([&] { program->run_operations(first, after); });
}

PyObject* program_rows(PyObject*, PyObject* args) {
  PyObject* capsule;
  long long buffer, num_rows;
  if (!PyArg_ParseTuple(args, "OLL", &capsule, &buffer, &num_rows)) return nullptr;
  Program* program = program_of(capsule);
  if (program == nullptr) return nullptr;
  if (buffer < 0 || buffer >= program->num_buffers() || num_rows < 0 || num_rows > program->num_rows()) {
    PyErr_Format(PyExc_ValueError, "%lld rows of buffer %lld: there are %lld of %lld", num_rows, buffer,
                 static_cast<long long>(program->num_rows()), static_cast<long long>(program->num_buffers()));
    return nullptr;
  }
  const Py_ssize_t size = num_rows * program->stride(buffer) * static_cast<Py_ssize_t>(sizeof(float));
  return PyMemoryView_FromMemory(reinterpret_cast<char*>(program->rows(buffer)), size, PyBUF_WRITE);
}

// Call `work(kernels, record)` with the kernels and the record that the arguments name.
template <typename Record, typename Work>
PyObject* run_record(PyObject* args, const char* what, const Work& work) {
  const char* name;
  PyObject* object;
  if (!PyArg_ParseTuple(args, "sO", &name, &object)) return nullptr;
  const Kernels* kernels = find_kernels(name);
  if (kernels == nullptr) {
    PyErr_Format(PyExc_ValueError, "instruction set %s is not available", name);
    return nullptr;
  }
  Words words(object, what);
  if (!words.is_valid()) return nullptr;
  if (words.size() * 8 != sizeof(Record)) {
    PyErr_Format(PyExc_ValueError, "%s: %zu words, %zu are needed", what, words.size(),
                 sizeof(Record) / 8);
    return nullptr;
  }
  Record record;
  std::memcpy(static_cast<void*>(&record), words.data(), sizeof(record));
  return run_unlocked([&] { work(*kernels, record); });
}

PyObject* choose_tokens(PyObject*, PyObject* args) {
  return run_record<mizzen::Choice>(args, "choice", mizzen::choose_tokens);
}

PyObject* penalise_rows(PyObject*, PyObject* args) {
  return run_record<mizzen::Penalties>(args, "penalties", mizzen::penalise_rows);
}

PyMethodDef kMethods[] = {
    {"instruction_sets", instruction_sets, METH_NOARGS, "Names that this processor can run, best first."},
    {"create_program", create_program, METH_VARARGS,
     "create_program(instruction_set, num_threads, settings, layers, weights, widths, operations)"},
    {"run_program", run_program, METH_VARARGS, "run_program(program, step)"},
    {"start_program", start_program, METH_VARARGS, "start_program(program, step)"},
    {"run_operations", run_operations, METH_VARARGS, "run_operations(program, first, after)"},
    {"program_rows", program_rows, METH_VARARGS, "program_rows(program, buffer, num_rows)"},
    {"choose_tokens", choose_tokens, METH_VARARGS, "choose_tokens(instruction_set, choice)"},
    {"penalise_rows", penalise_rows, METH_VARARGS, "penalise_rows(instruction_set, penalties)"},
    {nullptr, nullptr, 0, nullptr},
};

PyModuleDef kModule = {
    PyModuleDef_HEAD_INIT, "mizzen_native", "Native CPU kernels of Mizzen.", 0, kMethods,
    nullptr, nullptr, nullptr, nullptr,
};

}  // namespace

PyMODINIT_FUNC PyInit__native() { return PyModule_Create(&kModule); }
