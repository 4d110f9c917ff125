//! Compiles the networks' C with the compiler of the target and links it.

use std::env;
use std::path::PathBuf;
use std::process::Command;

const SOURCES: &[&str] = &[@source_list@];
const FLAGS: &[&str] = &[@flag_list@];
const USES_MATH: bool = @uses_math@;

/// Options of the core, by the beginning of the target's name; the first that fits.
const CORES: &[(&str, &[&str])] = &[
    ("thumbv6m", &["-mcpu=cortex-m0plus", "-mthumb"]),
    ("thumbv7m", &["-mcpu=cortex-m3", "-mthumb"]),
    ("thumbv7em-none-eabihf", &["-mcpu=cortex-m4", "-mthumb", "-mfpu=fpv4-sp-d16", "-mfloat-abi=hard"]),
    ("thumbv7em", &["-mcpu=cortex-m4", "-mthumb", "-mfloat-abi=soft"]),
    ("thumbv8m.base", &["-mcpu=cortex-m23", "-mthumb"]),
    ("thumbv8m.main-none-eabihf", &["-mcpu=cortex-m33", "-mthumb", "-mfpu=fpv5-sp-d16", "-mfloat-abi=hard"]),
    ("thumbv8m.main", &["-mcpu=cortex-m33", "-mthumb", "-mfloat-abi=soft"]),
    ("riscv32imac", &["-march=rv32imac", "-mabi=ilp32"]),
    ("riscv32imc", &["-march=rv32imc", "-mabi=ilp32"]),
    ("riscv32imafc", &["-march=rv32imafc", "-mabi=ilp32f"]),
];

fn run(command: &mut Command) {
    let done = command.status().unwrap_or_else(|error| panic!("{:?}: {}", command, error));
    assert!(done.success(), "{:?} failed", command);
}

/// The variable `name` of the target, as `CC_thumbv7em_none_eabihf`.
fn of_target(name: &str, target: &str) -> Option<String> {
    let key = format!("{}_{}", name, target.replace(|c| c == '-' || c == '.', "_"));
    println!("cargo:rerun-if-env-changed={}", key);
    env::var(key).ok()
}

fn main() {
    let target = env::var("TARGET").unwrap();
    let out = PathBuf::from(env::var("OUT_DIR").unwrap());
    let prefix = match &target {
        t if t.starts_with("thumb") => "arm-none-eabi-",
        t if t.starts_with("riscv32") => "riscv64-unknown-elf-",
        _ => "",
    };
    let default = if prefix.is_empty() { "cc".to_string() } else { format!("{}gcc", prefix) };
    let compiler = of_target("CC", &target).unwrap_or(default);
    let archiver = of_target("AR", &target).unwrap_or(format!("{}ar", prefix));
    let core = CORES.iter().find(|(start, _)| target.starts_with(start)).map_or(&[][..], |(_, flags)| *flags);
    let own = of_target("CFLAGS", &target).unwrap_or_default();
    println!("cargo:rerun-if-changed=c");
    let archive = out.join("lib@name@_network.a");
    let mut objects = Vec::new();
    for source in SOURCES {
        let object = out.join(source).with_extension("o");
        let place: PathBuf = ["c", source].iter().collect();
        let mut compile = Command::new(&compiler);
        compile.args(FLAGS).args(["-ffunction-sections", "-fdata-sections"]).args(core).args(own.split_whitespace());
        if prefix.is_empty() {
            compile.arg("-fPIC");
        }
        run(compile.arg("-c").arg(place).arg("-o").arg(&object));
        objects.push(object);
    }
    let _ = std::fs::remove_file(&archive);
    run(Command::new(&archiver).arg("crs").arg(&archive).args(&objects));
    println!("cargo:rustc-link-search=native={}", out.display());
    println!("cargo:rustc-link-lib=static=@name@_network");
    if USES_MATH && prefix.is_empty() {
        println!("cargo:rustc-link-lib=m");
    }
}
