"""Files of exported packages: text by place, with `NAME` in places and `@key@` in texts to be filled in by `export`."""

from __future__ import annotations

from collections.abc import Mapping

ZEPHYR: Mapping[str, str] = {
    "zephyr/module.yml": """\
name: tvm_cascade_@name@
build:
  cmake: .
  kconfig: Kconfig
samples:
  - samples
""",
    "Kconfig": """\
config TVM_CASCADE_@NAME@
    bool "Neural network @name@"
@needs@    help
      @what@, compiled by tvm_cascade for @target@: @arena_bytes@ bytes of RAM beside the stack.
""",
    "CMakeLists.txt": """\
if(CONFIG_TVM_CASCADE_@NAME@)
  zephyr_include_directories(include)
  zephyr_library_named(tvm_cascade_@name@)
  zephyr_library_sources(
@sources@
  )
  zephyr_library_compile_options(-O2 -fno-strict-aliasing @flags@)
@archive@endif()
""",
    "README.md": """\
# @name@ for Zephyr

@what@, compiled by tvm_cascade for @target@. Add this folder to `ZEPHYR_EXTRA_MODULES` or to your west
manifest, set `CONFIG_TVM_CASCADE_@NAME@=y`, include @include_words@. `samples/@name@` calls it:

```
west build -b <board> samples/@name@
```
""",
    "samples/NAME/CMakeLists.txt": """\
cmake_minimum_required(VERSION 3.20.0)
list(APPEND ZEPHYR_EXTRA_MODULES ${CMAKE_CURRENT_SOURCE_DIR}/../..)
find_package(Zephyr REQUIRED HINTS $ENV{ZEPHYR_BASE})
project(@name@_sample C)
target_sources(app PRIVATE src/main.c)
""",
    "samples/NAME/prj.conf": "CONFIG_TVM_CASCADE_@NAME@=y\nCONFIG_MAIN_STACK_SIZE=4096\n@settings@",
    "samples/NAME/sample.yaml": """\
sample:
  name: @name@
tests:
  sample.tvm_cascade.@name@:
    build_only: true
@arch@""",
    "samples/NAME/src/main.c": """\
#include <zephyr/kernel.h>
#include <zephyr/sys/printk.h>

@includes@
@calls@
int main(void)
{
@print_all@
    return 0;
}
""",
}

ARDUINO: Mapping[str, str] = {
    "library.properties": """\
name=@library@
version=@version@
author=tvm_cascade
maintainer=tvm_cascade
sentence=@what@ compiled for @target@.
paragraph=@arena_bytes@ bytes of RAM beside the stack, and no memory at run time.
category=Data Processing
url=https://tvm.apache.org
architectures=*
includes=@headers@
@precompiled@""",
    "keywords.txt": "@keywords@",
    "README.md": """\
# @name@ for Arduino

@what@, compiled by tvm_cascade for @target@. Copy this folder into your sketchbook's `libraries`, then open
File > Examples > @library@. @boards@
""",
    "examples/NAME/NAME.ino": """\
@library_includes@
@calls@
void setup()
{
    Serial.begin(115200);
}

void loop()
{
@report_all@
    delay(1000);
}
""",
}
