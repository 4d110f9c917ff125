// Runs the network of this folder with TVM's runtime alone; build it with the CMakeLists.txt beside it.
//
//     example                                               on random inputs: prints the time of a run
//     example --input NAME=FILE.bin --output NAME=FILE.bin [--threads N] [--repeat N]         (the first two repeatable)
//
// Run it in this folder. Without --output 20 runs are timed. Files hold raw values in C order, little endian. Names, shapes and types are in metadata.json.
// A network with states takes files of several runs, one behind the other: each run goes on from the one before.

#include <dlfcn.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include <tvm/ffi/container/shape.h>
#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/extra/json.h>
#include <tvm/ffi/extra/module.h>
#include <tvm/ffi/function.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iostream>
#include <iterator>
#include <map>
#include <memory>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

namespace ffi = tvm::ffi;

struct Spec {
  std::string name;
  std::vector<int64_t> shape;
  DLDataType type;
  size_t bytes;
  size_t offset;  // of weights, in their file
};

using Files = std::map<std::string, std::string>;  // by the name of an input or output

static ffi::Function Global(const char* name) {
  auto found = ffi::Function::GetGlobal(name);
  if (!found.has_value()) throw std::runtime_error(std::string("TVM's runtime has no function ") + name);
  return *found;
}

static std::string Read(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) throw std::runtime_error("cannot read " + path);
  return std::string(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
}

static ffi::Any Member(const ffi::Any& object, const char* key) {
  return object.cast<ffi::json::Object>()[ffi::String(key)];
}

static Spec One(const ffi::Any& described) {
  const auto fields = described.cast<ffi::json::Object>();
  Spec spec{"", {}, {}, 1, 0};
  if (fields.count(ffi::String("name"))) spec.name = Member(described, "name").cast<ffi::String>();
  if (fields.count(ffi::String("offset"))) spec.offset = static_cast<size_t>(Member(described, "offset").cast<int64_t>());
  spec.type = ffi::StringToDLDataType(Member(described, "dtype").cast<ffi::String>());
  for (const ffi::Any& extent : Member(described, "shape").cast<ffi::json::Array>()) {
    spec.shape.push_back(extent.cast<int64_t>());
    spec.bytes *= static_cast<size_t>(spec.shape.back());
  }
  spec.bytes *= (spec.type.bits * spec.type.lanes + 7) / 8;
  return spec;
}

static std::vector<Spec> Specs(const ffi::Any& described, const char* key) {
  std::vector<Spec> specs;
  for (const ffi::Any& one : Member(described, key).cast<ffi::json::Array>()) specs.push_back(One(one));
  return specs;
}

// Returns the bytes that a text of two hexadecimal digits each says.
static std::string Bytes(const std::string& digits) {
  std::string bytes;
  for (size_t k = 0; k + 1 < digits.size(); k += 2) bytes.push_back(static_cast<char>(std::stoi(digits.substr(k, 2), nullptr, 16)));
  return bytes;
}

// A file in memory: a page is read when it is used, and shared by all processes that use it.
class Mapping {
 public:
  Mapping(const std::string& path, size_t bytes) : bytes_(bytes) {
    const int file = open(path.c_str(), O_RDONLY);
    struct stat about = {};
    if (file < 0 || fstat(file, &about) != 0 || static_cast<size_t>(about.st_size) != bytes) {
      if (file >= 0) close(file);
      throw std::runtime_error(path + " does not have the " + std::to_string(bytes) + " bytes of this network's weights");
    }
    start_ = mmap(nullptr, bytes, PROT_READ, MAP_PRIVATE, file, 0);
    close(file);
    if (start_ == MAP_FAILED) throw std::runtime_error("cannot map " + path);
  }
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;
  ~Mapping() { munmap(start_, bytes_); }

  char* At(size_t offset) const { return static_cast<char*>(start_) + offset; }

 private:
  void* start_;
  size_t bytes_;
};

// A tensor whose data lies in a mapping, which lives as long as the tensor.
struct MappedTensor {
  DLManagedTensor tensor;
  std::vector<int64_t> shape;
  std::shared_ptr<Mapping> mapping;
};

// A program of the folder: of a network for several batches or lengths there is one for each.
struct Program {
  int64_t batch;  // rows; 0: the network has one batch
  std::string library;
  bool several;                  // whether the file of weights has tensors of further programs
  std::vector<int64_t> weights;  // numbers of the tensors in the file of weights
  std::vector<Spec> takes, gives;
};

static std::vector<Program> Programs(const ffi::Any& metadata) {
  const ffi::Any batches = Member(metadata, "batches"), lengths = Member(metadata, "lengths");
  const auto takes = Specs(metadata, "inputs"), gives = Specs(metadata, "outputs");
  if (batches == nullptr && lengths == nullptr) {
    return {Program{0, std::string(Member(metadata, "library").cast<ffi::String>()), false, {}, takes, gives}};
  }
  std::vector<Program> programs;
  for (const ffi::Any& one : (batches == nullptr ? lengths : batches).cast<ffi::json::Array>()) {
    Program program{0, std::string(Member(one, "library").cast<ffi::String>()), true, {}, takes, gives};
    if (batches == nullptr) {
      program.takes = Specs(one, "inputs"), program.gives = Specs(one, "outputs");
    } else {
      program.batch = Member(one, "batch").cast<int64_t>();
    }
    for (const ffi::Any& k : Member(one, "weights").cast<ffi::json::Array>()) program.weights.push_back(k.cast<int64_t>());
    programs.push_back(program);
  }
  return programs;
}

static std::vector<ffi::Tensor> Weights(const ffi::Any& metadata, const Program& program) {
  const ffi::Any described = Member(metadata, "weights");
  if (described == nullptr) return {};
  const std::string file = Member(described, "file").cast<ffi::String>();
  const auto mapping = std::make_shared<Mapping>(file, static_cast<size_t>(Member(described, "bytes").cast<int64_t>()));
  std::vector<ffi::Tensor> weights;
  std::vector<Spec> specs = Specs(described, "tensors");
  if (program.several) {
    std::vector<Spec> own;
    for (const int64_t k : program.weights) own.push_back(specs.at(static_cast<size_t>(k)));
    specs = own;
  }
  for (const Spec& spec : specs) {
    auto* made = new MappedTensor{{}, spec.shape, mapping};
    made->tensor.dl_tensor = DLTensor{mapping->At(spec.offset), DLDevice{kDLCPU, 0}, static_cast<int32_t>(spec.shape.size()),
                                      spec.type, made->shape.data(), nullptr, 0};
    made->tensor.manager_ctx = made;
    made->tensor.deleter = [](DLManagedTensor* tensor) { delete static_cast<MappedTensor*>(tensor->manager_ctx); };
    weights.push_back(ffi::Tensor::FromDLPack(&made->tensor));
  }
  return weights;
}

// What runs the network, for one thread at a time: a second thread needs a Session of its own.
class Session {
 public:
  Session(const ffi::Module& library, DLDevice device, std::vector<ffi::Tensor> weights, const ffi::Any& states)
      : device_(device), weights_(std::move(weights)), machine_(Find(library, "vm_load_executable")().cast<ffi::Module>()) {
    const int cpu = kDLCPU, pooled = 2;  // TVM's number of its allocator that keeps memory for the next run
    if (device.device_type == kDLCPU) {
      Find(machine_, "vm_initialization")(cpu, 0, pooled);
    } else {
      Find(machine_, "vm_initialization")(static_cast<int>(device.device_type), device.device_id, pooled, cpu, 0, pooled);
    }
    main_ = Find(machine_, "main");
    if (states == nullptr) return;
    for (const ffi::Any& one : states.cast<ffi::json::Array>()) {
      const Spec spec = One(one);
      const ffi::Any initial = Member(one, "initial");
      states_.push_back(Upload(spec, initial == nullptr ? std::string(spec.bytes, '\0') : Bytes(initial.cast<ffi::String>())));
    }
  }

  ffi::Tensor Upload(const Spec& spec, std::string data) const {
    auto tensor = Global("runtime.TVMTensorAllocWithScope")(ffi::Shape(spec.shape), spec.type, device_, nullptr)
                      .cast<ffi::Tensor>();
    Global("runtime.TVMTensorCopyFromBytes")(tensor, static_cast<void*>(data.data()), data.size());
    return tensor;
  }

  // Returns the outputs; keeps the states for the next run.
  std::vector<ffi::Tensor> Run(const std::vector<ffi::Tensor>& inputs) {
    std::vector<ffi::AnyView> arguments(inputs.begin(), inputs.end());
    arguments.insert(arguments.end(), states_.begin(), states_.end());
    arguments.insert(arguments.end(), weights_.begin(), weights_.end());
    ffi::Any result;
    main_.CallPacked(arguments.data(), static_cast<int32_t>(arguments.size()), &result);
    if (auto single = result.as<ffi::Tensor>()) return {*single};
    std::vector<ffi::Tensor> several;
    for (const ffi::Any& one : result.cast<ffi::Array<ffi::Any>>()) several.push_back(one.cast<ffi::Tensor>());
    const auto kept = several.end() - static_cast<std::ptrdiff_t>(states_.size());
    states_.assign(kept, several.end());
    several.erase(kept, several.end());
    return several;
  }

  static std::string Download(const ffi::Tensor& tensor, size_t bytes) {
    std::string data(bytes, '\0');
    Global("runtime.TVMTensorCopyToBytes")(tensor, static_cast<void*>(data.data()), data.size());
    return data;
  }

 private:
  static ffi::Function Find(const ffi::Module& module, const char* name) {
    auto found = module->GetFunction(name);
    if (!found.has_value()) throw std::runtime_error(std::string("the library has no function ") + name);
    return *found;
  }

  DLDevice device_;
  std::vector<ffi::Tensor> weights_, states_;
  ffi::Module machine_;
  ffi::Function main_;
};

static DLDevice Device(const ffi::Any& metadata) {
  if (Member(metadata, "target").cast<ffi::String>() != "cuda") return DLDevice{kDLCPU, 0};
  if (dlopen(TVM_RUNTIME_CUDA, RTLD_NOW | RTLD_LOCAL) == nullptr) {
    throw std::runtime_error(std::string("TVM's CUDA runtime does not load: ") + dlerror());
  }
  return DLDevice{kDLCUDA, static_cast<int>(Member(metadata, "device").cast<int64_t>())};
}

// Prints the median of the times of runs, and the quartiles. Downloads a result each time: a GPU then has ended.
static void Time(Session& session, const std::vector<ffi::Tensor>& given, size_t bytes, int repeat) {
  std::vector<double> times;
  for (int k = -3; k < repeat; ++k) {
    const auto begin = std::chrono::steady_clock::now();
    Session::Download(session.Run(given).at(0), bytes);
    const std::chrono::duration<double, std::milli> passed = std::chrono::steady_clock::now() - begin;
    if (k >= 0) times.push_back(passed.count());
  }
  std::sort(times.begin(), times.end());
  std::cout << times[times.size() / 2] << " ms, median of " << repeat << " runs (quartiles " << times[times.size() / 4]
            << " and " << times[3 * times.size() / 4] << ")\n";
}

// Draws an input, the same every time: float32 is normal, all else 0 or 1, a valid index of any table.
static std::string Draw(const Spec& spec) {
  std::mt19937 source(0);
  std::string data(spec.bytes, '\0');
  const bool floats = spec.type.code == kDLFloat && spec.type.bits == 32;
  const size_t width = std::max<size_t>(1, spec.type.bits / 8);
  std::normal_distribution<float> normal;
  for (size_t k = 0; k + width <= data.size(); k += width) {
    if (floats) {
      const float value = normal(source);
      std::memcpy(&data[k], &value, sizeof value);
    } else {
      data[k] = static_cast<char>(source() & 1);
    }
  }
  return data;
}

// Returns the rows that the files of inputs hold, which are the same for all; those of the largest program without files.
static int64_t Rows(const ffi::Any& metadata, const std::vector<Spec>& takes, const Files& inputs, int64_t largest) {
  int64_t rows = 0;
  for (const ffi::Any& name : Member(metadata, "rows").cast<ffi::json::Array>()) {
    for (const Spec& spec : takes) {
      const auto found = inputs.find(spec.name);
      if (spec.name != std::string(name.cast<ffi::String>()) || found == inputs.end()) continue;
      const size_t row = spec.bytes / static_cast<size_t>(largest), size = Read(found->second).size();
      const int64_t given = size % row == 0 ? static_cast<int64_t>(size / row) : 0;
      if (given < 1 || given > largest || (rows != 0 && given != rows)) {
        throw std::runtime_error(found->second + " has " + std::to_string(size) + " bytes: give 1 to " + std::to_string(largest) +
                                 " rows of " + std::to_string(row) + ", as many for each input");
      }
      rows = given;
    }
  }
  return rows == 0 ? largest : rows;
}

static bool HasRows(const ffi::Any& metadata, const std::string& name) {
  for (const ffi::Any& one : Member(metadata, "rows").cast<ffi::json::Array>()) {
    if (std::string(one.cast<ffi::String>()) == name) return true;
  }
  return false;
}

static bool Fits(const Program& program, const Files& inputs) {
  for (const Spec& spec : program.takes) {
    const auto found = inputs.find(spec.name);
    if (found != inputs.end() && Read(found->second).size() != spec.bytes) return false;
  }
  return true;
}

static void Run(const Files& inputs, const Files& outputs, int repeat) {
  const ffi::Any metadata = ffi::json::Parse(Read("metadata.json"));
  if (Member(metadata, "cudnn_kernels").cast<int64_t>() > 0) {
    throw std::runtime_error("some kernels of this network are cuDNN's, which are called through Python: run example.py");
  }
  for (const auto& [name, file] : outputs) {
    bool known = false;
    for (const Spec& spec : Specs(metadata, "outputs")) known = known || spec.name == name;
    if (!known) throw std::runtime_error("the network has no output " + name);
  }
  const DLDevice device = Device(metadata);
  const auto programs = Programs(metadata);
  Program program = programs.back();
  const int64_t largest = program.batch, rows = largest > 0 ? Rows(metadata, program.takes, inputs, largest) : 0;
  for (size_t k = programs.size(); largest > 0 && k-- > 0;) {
    if (programs[k].batch >= rows) program = programs[k];  // the smallest that holds the rows
  }
  for (const Program& one : programs) {
    if (largest == 0 && Fits(one, inputs)) program = one;  // that has the length of the files
  }
  auto takes = program.takes, gives = program.gives;
  for (Spec& spec : takes) {
    if (largest == 0 || !HasRows(metadata, spec.name)) continue;
    spec.bytes = spec.bytes / static_cast<size_t>(largest) * static_cast<size_t>(program.batch);
    spec.shape[0] = program.batch;
  }
  const ffi::Any states = Member(metadata, "states");
  Session session(ffi::Module::LoadFromFile("./" + program.library), device, Weights(metadata, program), states);
  std::vector<std::string> data;
  size_t runs = 0;  // that the files hold; one, but of a network with states
  for (const Spec& spec : takes) {
    const auto found = inputs.find(spec.name);
    if (found == inputs.end() && !inputs.empty()) {
      throw std::runtime_error("give --input " + spec.name + "=FILE.bin too, or none: all are random then");
    }
    data.push_back(found == inputs.end() ? Draw(spec) : Read(found->second));
    if (largest > 0 && HasRows(metadata, spec.name)) data.back().resize(spec.bytes, '\0');  // zeros behind the given rows
    const size_t given = data.back().size() % spec.bytes == 0 ? data.back().size() / spec.bytes : 0;
    if (given == 0 || (given != 1 && states == nullptr) || (runs != 0 && given != runs)) {
      throw std::runtime_error(found->second + " has " + std::to_string(data.back().size()) + " bytes, " + spec.name + " takes " +
                               std::to_string(spec.bytes) + (states == nullptr ? "" : " a run, as many runs for each input"));
    }
    runs = given;
  }
  if (!inputs.empty() && inputs.size() != takes.size()) throw std::runtime_error("an --input that the network does not have");
  for (Spec& spec : gives) {
    if (largest > 0) spec.bytes = spec.bytes / static_cast<size_t>(largest) * static_cast<size_t>(program.batch);
  }
  std::vector<std::string> made(gives.size());
  std::vector<ffi::Tensor> given;
  for (size_t run = 0; run < std::max<size_t>(runs, 1); ++run) {
    given.clear();
    for (size_t k = 0; k < takes.size(); ++k) {
      given.push_back(session.Upload(takes[k], data[k].substr(run * takes[k].bytes, takes[k].bytes)));
    }
    const auto results = session.Run(given);
    for (size_t k = 0; k < gives.size(); ++k) made[k] += Session::Download(results.at(k), gives[k].bytes);
  }
  if (repeat > 0) Time(session, given, gives.at(0).bytes, repeat);
  for (size_t k = 0; k < gives.size(); ++k) {
    const auto wanted = outputs.find(gives[k].name);
    if (wanted == outputs.end()) continue;
    if (largest > 0) made[k].resize(made[k].size() / static_cast<size_t>(program.batch) * static_cast<size_t>(rows));
    std::ofstream file(wanted->second, std::ios::binary);
    file << made[k];
    if (!file.flush()) throw std::runtime_error("cannot write " + wanted->second);
  }
}

int main(int count, char** words) {
  Files inputs, outputs;
  std::string threads = "1";
  int repeat = -1;
  for (int k = 1; k < count; ++k) {
    const std::string option = words[k], value = k + 1 < count ? words[++k] : "";
    const size_t sign = value.rfind('=');
    if (option == "--threads" && !value.empty()) {
      threads = value;
    } else if (option == "--repeat" && !value.empty()) {
      repeat = std::atoi(value.c_str());
    } else if ((option == "--input" || option == "--output") && sign != std::string::npos) {
      (option == "--input" ? inputs : outputs)[value.substr(0, sign)] = value.substr(sign + 1);
    } else {
      std::cerr << "usage: example --input NAME=FILE.bin --output NAME=FILE.bin [--threads N] [--repeat N]\n";
      return 2;
    }
  }
  setenv("TVM_NUM_THREADS", threads.c_str(), 1);  // read when TVM's pool starts
  try {
    Run(inputs, outputs, repeat < 0 ? (outputs.empty() ? 20 : 0) : repeat);
  } catch (const std::exception& error) {
    std::cerr << "example: " << error.what() << "\n";
    return 1;
  }
  return 0;
}
