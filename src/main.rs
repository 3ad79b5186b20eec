//! The program `evenkeel`.

use std::process::ExitCode;

fn main() -> ExitCode {
    evenkeel::service::cli::main()
}
