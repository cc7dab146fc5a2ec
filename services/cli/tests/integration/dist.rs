//! The tarball and the wheel of `make dist`, installed into empty folders: without the cache, the build folder and the environment.

use std::fs;
use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use serde_json::Value;
use souk_testing::http_client::ask;
use souk_testing::{minilm, repository, skip};

const ITEMS: &str =
    "id,title,brand\n1,cordless drill 18V,Forge\n2,garden hose 20 m,Lawnly\n3,red running shoes,Fleet\n";

/// The folder with torch/ and nvidia/ that `make setup` filled and cargo builds with.
fn libtorch() -> Option<PathBuf> {
    let folder = PathBuf::from(std::env::var_os("LIBTORCH")?).parent()?.to_owned();
    folder.join("nvidia/cu13/lib").exists().then_some(folder)
}

fn run_ok(command: &mut Command) -> String {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// A command that knows nothing but the system's programs and an empty home folder.
fn bare(program: &Path, home: &Path) -> Command {
    let mut command = Command::new(program);
    command.env_clear().env("PATH", "/usr/bin:/bin").env("HOME", home).env("HF_HUB_OFFLINE", "1").current_dir(home);
    command
}

fn make(out: &Path, libtorch: &Path) {
    let programs = Path::new(env!("CARGO_BIN_EXE_souk-engine")).parent().unwrap();
    let mut dist = Command::new("python3");
    dist.arg(repository().join("scripts/dist.py")).args(["wheel", "tarball", "--level", "1"]);
    run_ok(dist.arg("--programs").arg(programs).arg("--torch").arg(libtorch).arg("--out").arg(out));
}

/// Unpacks the tarball and returns its folder.
fn unpack(dist: &Path, place: &Path) -> PathBuf {
    run_ok(Command::new("sha256sum").args(["--check", "--quiet", "SHA256SUMS"]).current_dir(dist));
    run_ok(Command::new("tar").arg("-xzf").arg(found(dist, ".tar.gz")).arg("-C").arg(place));
    found(place, "x86_64")
}

/// Installs the wheel into an environment of its own, which has torch's libraries where pip puts them.
fn install(dist: &Path, env: &Path, libtorch: &Path) {
    run_ok(Command::new("python3").args(["-m", "venv"]).arg(env));
    let install = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-index", "--no-deps"];
    run_ok(Command::new(env.join("bin/python")).args(install).arg(found(dist, ".whl")));
    let print = "import sysconfig; print(sysconfig.get_path('purelib'))";
    let packages = PathBuf::from(run_ok(Command::new(env.join("bin/python")).args(["-c", print])).trim());
    for name in ["torch", "nvidia"] {
        symlink(libtorch.join(name), packages.join(name)).unwrap();
    }
}

fn found(folder: &Path, suffix: &str) -> PathBuf {
    let mut paths = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    paths.find(|path| path.to_str().unwrap().ends_with(suffix)).unwrap()
}

fn embed(souk: &Path, home: &Path) -> Vec<f64> {
    fs::write(home.join("texts"), "cordless drill\n").unwrap();
    let mut command = bare(souk, home);
    command.arg("embed").arg("--model").arg(minilm()).stdin(fs::File::open(home.join("texts")).unwrap());
    serde_json::from_str(run_ok(&mut command).trim()).unwrap()
}

/// `souk start` on three items, until it serves them; killed when dropped.
struct Shop {
    child: Child,
    address: SocketAddr,
}

impl Shop {
    fn start(souk: &Path, home: &Path) -> Self {
        fs::write(home.join("items.csv"), ITEMS).unwrap();
        let mut command = bare(souk, home);
        command.args(["start", "--items", "items.csv", "--listen", "127.0.0.1:0", "--model"]).arg(minilm());
        let mut child = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
        let mut printed = String::new();
        let mut lines = BufReader::new(child.stderr.take().unwrap()).lines().map_while(Result::ok);
        let address = lines.find_map(|line| {
            printed += &format!("{line}\n");
            line.split("answers on http://").nth(1).map(|rest| rest.split('/').next().unwrap().parse().unwrap())
        });
        // it would stop at a full or closed pipe
        std::thread::spawn(move || lines.for_each(drop));
        Self { child, address: address.unwrap_or_else(|| panic!("it does not serve: {printed}")) }
    }

    fn search(&self, query: &str) -> Value {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let body = format!(r#"{{"query": "{query}", "k": 1}}"#);
        runtime
            .block_on(ask(self.address, "POST /search", "Content-Type: application/json\r\n", body.as_bytes()))
            .json()
    }

    /// The folder whose libraries the engine was started with.
    fn library_path(&self) -> String {
        let environment = fs::read(format!("/proc/{}/environ", self.child.id())).unwrap();
        let environment = String::from_utf8(environment).unwrap();
        environment.split('\0').find_map(|pair| pair.strip_prefix("LD_LIBRARY_PATH=")).unwrap().to_owned()
    }
}

impl Drop for Shop {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn the_tarball_and_the_wheel_embed_serve_and_search_in_a_clean_place() {
    let launcher = Path::new(env!("CARGO_BIN_EXE_souk-engine")).with_file_name("souk");
    let module = launcher.with_file_name("libsouk_python.so");
    let has_all = launcher.exists() && module.exists() && cfg!(target_arch = "x86_64");
    let Some(libtorch) = libtorch().filter(|_| has_all) else {
        let problem = "needs `souk` and libsouk_python.so beside `souk-engine`, and libtorch: run `make test`";
        return skip("the_tarball_and_the_wheel", problem);
    };
    let place = tempfile::tempdir().unwrap();
    let folder = |name: &str| {
        let folder = place.path().join(name);
        fs::create_dir_all(&folder).unwrap();
        folder
    };
    let (dist, unpacked, env, home) = (folder("dist"), folder("unpacked"), folder("env"), folder("home"));
    make(&dist, &libtorch);
    let archive = unpack(&dist, &unpacked);
    install(&dist, &env, &libtorch);
    assert!(env.join("share/souk/configs/home-depot.toml").exists());
    let client = ["-I", "-c", "import souk, souk.schemas; assert issubclass(souk.Busy, souk.SoukError); souk.Client"];
    let missing = bare(&env.join("bin/python"), &home).args(client).output().unwrap();
    assert!(missing.status.success(), "{}", String::from_utf8_lossy(&missing.stderr));

    let vectors = [&archive, &env].map(|prefix| embed(&prefix.join("bin/souk"), &home));
    assert_eq!((vectors[0].len(), &vectors[0]), (384, &vectors[1]));
    encode_in_python(&env, &home);
    for prefix in [&archive, &env] {
        let shop = Shop::start(&prefix.join("bin/souk"), &folder(if *prefix == env { "b" } else { "a" }));
        let hits = shop.search("cordless drill");
        assert_eq!(hits["hits"][0]["id"], "1", "{hits}");
        let libraries = shop.library_path();
        assert!(libraries.starts_with(prefix.to_str().unwrap()), "{libraries}");
    }

    let needs = "import importlib.metadata as m; print(m.requires('souk'), m.metadata('souk')['Name'])";
    assert_eq!(
        run_ok(Command::new(env.join("bin/python")).args(["-c", needs])).trim(),
        "['torch==2.11.0', 'numpy>=1.26', 'httpx>=0.27; extra == \"client\"'] souk"
    );
    check_bill_of_materials(&archive);
}

/// The wheel's `souk.Encoder`, with the numpy of another environment.
fn encode_in_python(env: &Path, home: &Path) {
    let requirements = "services/search/tests/clients/requirements.txt";
    let with_numpy = run_ok(Command::new(repository().join("scripts/python.sh")).arg(requirements));
    let print = "import sysconfig; print(sysconfig.get_path('purelib'))";
    let packages = run_ok(Command::new(with_numpy.trim()).args(["-c", print]));
    let mut script = bare(&env.join("bin/python"), home);
    script.arg("-B").arg(repository().join("services/python/tests/encode.py"));
    run_ok(script.arg(repository().join("tests/golden")).env("PYTHONPATH", packages.trim()));
}

/// Every crate of the programs is in it, with its version and checksum; tests' crates are not.
fn check_bill_of_materials(archive: &Path) {
    let bill: Value = serde_json::from_slice(&fs::read(archive.join("sbom.cdx.json")).unwrap()).unwrap();
    let components = bill["components"].as_array().unwrap();
    let named = |name: &str| components.iter().find(|component| component["name"] == name);
    for name in ["axum", "tch", "torch", "tokio", "rdkafka-sys", "milvus-sdk-rust"] {
        assert!(named(name).is_some_and(|component| component["version"].is_string()), "{name}");
    }
    assert!(named("proptest").is_none());
    assert_eq!(named("axum").unwrap()["hashes"][0]["content"].as_str().unwrap().len(), 64);
    assert_eq!(bill["dependencies"].as_array().unwrap().len(), components.len());
}
