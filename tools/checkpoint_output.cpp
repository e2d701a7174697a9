#include "tools/checkpoint_output.h"

#include "core/base/error.h"
#include "io/atomic_file.h"

namespace annulus {

void write_new_file(const std::filesystem::path& path,
                    const std::function<void(const std::filesystem::path&)>& write) {
  std::error_code error;  // whatever else is wrong with the path, creating the file will say
  require<FileError>(!std::filesystem::exists(std::filesystem::symlink_status(path, error)),
                     "{}: exists already; remove it or choose another name", path.string());
  AtomicFile file(path);
  write(file.temporary());
  file.publish();
}

}  // namespace annulus
