//! The commands of `README.md`, `docs/usage.md`, `docs/integrations.md` and `docs/your-shop.md` work in the order in which they stand there. Each command
//! in a `console` block is run, on a smaller shop and with fewer steps, or a comment above the block says why not:
//! `<!-- not run: BEGINNING OF THE COMMAND: REASON -->`, where the beginning `*` means all commands of the block.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use tempfile::TempDir;

/// Parts of commands, and what is added to such commands to make them fast and independent of the machine's ports.
const ADDED: [(&str, &str); 7] = [
    ("souk start", "--once --model $MODEL"),
    ("souk market", "--items 600 --queries 120 --events 3000"),
    ("souk init", "--set scratch.vocab=600 --set scratch.architecture.num_hidden_layers=1"),
    ("souk train", "--set train.max_steps=2 --set train.batch=8"),
    ("-- train", "--set train.max_steps=2 --set train.batch=8"),
    ("souk relevance train", "--set relevance.max_pairs=300 --set relevance.held_out=0.5"),
    ("souk doctor", "--set trainer.listen=127.0.0.1:0 --set search.listen=127.0.0.1:0"),
];
/// Services, and their default ports.
const SERVICES: [(&str, &str); 3] =
    [("souk serve", "8080"), ("souk trainer", "8070"), ("souk relevance serve", "8090")];

#[derive(Debug, Default, PartialEq)]
struct Block {
    commands: Vec<String>,
    /// Beginnings of commands that are not run, and the reasons.
    marks: Vec<(String, String)>,
}

fn blocks(text: &str) -> Vec<Block> {
    let mut blocks = Vec::new();
    let (mut block, mut is_inside) = (Block::default(), false);
    for line in text.lines() {
        match (is_inside, line) {
            (false, "```console") => is_inside = true,
            (false, line) => {
                let mark = line.strip_prefix("<!-- not run: ").and_then(|mark| mark.strip_suffix(" -->"));
                let mark = mark.and_then(|mark| mark.rsplit_once(": "));
                block.marks.extend(mark.map(|(beginning, reason)| (beginning.to_owned(), reason.to_owned())));
            }
            (true, "```") => {
                is_inside = false;
                blocks.push(std::mem::take(&mut block));
            }
            (true, line) => match (line.strip_prefix("$ "), block.commands.last_mut()) {
                (Some(command), _) => block.commands.push(command.to_owned()),
                (None, Some(last)) if last.ends_with('\\') => *last += &format!("\n{line}"),
                // output
                (None, _) => {}
            },
        }
    }
    blocks
}

/// Spaces do not count, so that the marks need not follow the document's columns.
fn squeezed(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

impl Block {
    fn reason(&self, command: &str) -> Option<&str> {
        let begins = |beginning: &str| beginning == "*" || squeezed(command).starts_with(&squeezed(beginning));
        self.marks.iter().find(|(beginning, _)| begins(beginning)).map(|(_, reason)| reason.as_str())
    }

    /// A mark without a command is a mistake: the command has changed.
    fn stale_marks(&self) -> Vec<&str> {
        let is_used = |mark: &&(String, String)| {
            let alone = Self { commands: Vec::new(), marks: vec![(*mark).clone()] };
            self.commands.iter().any(|command| alone.reason(command).is_some())
        };
        self.marks.iter().filter(|mark| !is_used(mark)).map(|(beginning, _)| beginning.as_str()).collect()
    }
}

const MATERIALS: [&str; 5] = ["oak", "steel", "glass", "bamboo", "marble"];
const THINGS: [&str; 8] = ["desk", "lamp", "shelf", "chair", "mirror", "vase", "bed", "stool"];

/// A product file: every material with every thing, in three sizes.
fn items() -> String {
    let row = |at: usize| {
        let (material, thing, size) = (MATERIALS[at % 5], THINGS[at / 5 % 8], 40 + 20 * (at / 40));
        format!("p{at},{material} {thing} {size} cm,Home,{}.90\n", 10 + at)
    };
    ["sku,name,category,price\n".to_owned()].into_iter().chain((0..120).map(row)).collect()
}

/// Training pairs: queries of two words, an item with both and one with the other material.
fn triplets() -> String {
    let row = |at: usize| {
        let (thing, material, other) = (THINGS[at / 5 % 8], MATERIALS[at % 5], MATERIALS[(at + 1) % 5]);
        format!("{material} {thing},A {thing} made of {material},A {thing} made of {other}\n")
    };
    ["anchor,positive,negative\n".to_owned()].into_iter().chain((0..40).map(row)).collect()
}

/// A search log of twelve days: each search shows six items and ends with a click on one that has both words.
fn log() -> String {
    let mut text = String::from("time,session,phrase,product,position,event\n");
    for search in 0..600_usize {
        let (material, thing) = (search % 5, search / 5 % 8);
        let query = format!("{} {}", MATERIALS[material], THINGS[thing]);
        let time = 1_760_000_000 + search * 1728;
        for position in 1..=6 {
            let answers = position == 1 + search % 6;
            let at =
                if answers { material + 5 * thing + 40 * (search % 3) } else { (search * 7 + position * 11) % 120 };
            let mut event = |name: &str| text += &format!("{time},s{search},{query},p{at},{position},{name}\n");
            event("impression");
            if answers {
                event(if search % 4 == 0 { "purchase" } else { "click" });
            }
        }
    }
    text
}

/// A shell in a folder of its own, with `souk` on its path.
struct Shell {
    home: TempDir,
    /// The running service, its default port, and the port that it got.
    service: Option<(Child, &'static str, String)>,
}

impl Shell {
    fn open() -> Self {
        let home = tempfile::tempdir().unwrap();
        let root = souk_testing::repository();
        for name in ["configs", "docs"] {
            symlink(root.join(name), home.path().join(name)).unwrap();
        }
        fs::create_dir(home.path().join("bin")).unwrap();
        symlink(env!("CARGO_BIN_EXE_souk-engine"), home.path().join("bin/souk")).unwrap();
        fs::write(home.path().join("toys.csv"), "1,Wooden train,Toys,Acme,9.99\n2,Oak blocks,Toys,Acme,19.99\n")
            .unwrap();
        fs::write(home.path().join("items.csv"), items()).unwrap();
        fs::write(home.path().join("log.csv"), log()).unwrap();
        fs::write(home.path().join("triplets.csv"), triplets()).unwrap();
        fs::write(home.path().join("titles.txt"), "oak desk\ndesk lamp\n").unwrap();
        let shell = Self { home, service: None };
        assert!(shell.bash("gzip log.csv").status().unwrap().success());
        shell
    }

    fn bash(&self, command: &str) -> Command {
        let path = format!("{}:{}", self.home.path().join("bin").display(), std::env::var("PATH").unwrap());
        let mut bash = Command::new("bash");
        bash.args(["-c", command]).current_dir(self.home.path()).env("PATH", path).env_remove("RUST_LOG");
        bash.env("MODEL", souk_testing::golden("st_mean_dense")).env("HF_HUB_OFFLINE", "1").env("OMP_NUM_THREADS", "1");
        bash
    }

    fn run(&mut self, command: &str) {
        let plain = command.split(" # ").next().unwrap().trim();
        match plain.strip_suffix('&') {
            _ if plain == "kill %%" => self.stop(),
            Some(service) => self.start(service),
            None if SERVICES.iter().any(|(name, _)| squeezed(plain).starts_with(name)) => {
                self.start(plain);
                self.stop();
            }
            None => {
                let output = self.bash(&self.adapted(plain)).output().unwrap();
                let (out, log) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
                assert!(output.status.success(), "{command}\n{out}{log}");
            }
        }
    }

    /// Makes a command fast, sends it to the running service's port, and lets curl fail on an error.
    fn adapted(&self, command: &str) -> String {
        let mut adapted = command.replace("curl -s ", "curl -sS --fail ");
        if let Some((_, usual, port)) = &self.service {
            for host in ["localhost", "127.0.0.1"] {
                adapted = adapted.replace(&format!("{host}:{usual}"), &format!("{host}:{port}"));
            }
        }
        for (_, added) in ADDED.iter().filter(|(part, _)| squeezed(command).contains(part)) {
            adapted += &format!(" {added}");
        }
        adapted
    }

    fn start(&mut self, command: &str) {
        assert!(self.service.is_none(), "{command}: stop the service before it");
        let begins = |part: &&(&str, &str)| squeezed(command).starts_with(part.0);
        let (_, usual) = SERVICES.iter().find(begins).unwrap_or_else(|| panic!("{command}: not a service"));
        let mut bash = self.bash(&format!("exec {command} --listen 127.0.0.1:0"));
        let log = self.home.path().join("service.log");
        let mut child = bash.stdout(Stdio::piped()).stderr(fs::File::create(&log).unwrap()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let port =
            line.split("://127.0.0.1:").nth(1).map(|rest| rest.chars().take_while(char::is_ascii_digit).collect());
        self.service = Some((child, usual, port.unwrap_or_default()));
        assert!(line.contains("://127.0.0.1:"), "{command}\n{line}{}", fs::read_to_string(&log).unwrap());
    }

    fn stop(&mut self) {
        if let Some((mut child, ..)) = self.service.take() {
            child.kill().unwrap();
            child.wait().unwrap();
        }
    }
}

impl Drop for Shell {
    fn drop(&mut self) {
        self.stop();
    }
}

/// Runs the blocks of a document in one shell; prints what is not run past the test's captured output.
fn run_document(path: &Path, text: &str) -> usize {
    let name = path.file_name().unwrap().to_string_lossy();
    let (mut shell, mut num_run) = (Shell::open(), 0);
    for block in blocks(text) {
        assert_eq!(block.stale_marks(), Vec::<&str>::new(), "{name}: marks of commands that are not in the block");
        for command in &block.commands {
            if let Some(reason) = block.reason(command) {
                let mut log = std::io::stderr();
                writeln!(log, "{name}: not run: {}: {reason}", squeezed(command)).unwrap();
                continue;
            }
            shell.run(command);
            num_run += 1;
        }
    }
    num_run
}

fn document(name: &str) -> (PathBuf, String) {
    let path = souk_testing::repository().join(name);
    let text = fs::read_to_string(&path).unwrap();
    (path, text)
}

#[test]
fn the_commands_of_the_usage_page_work_in_their_order() {
    let (path, text) = document("docs/usage.md");
    let num_run = run_document(&path, &text);
    assert!(num_run > 25, "{num_run}");
}

#[test]
fn the_commands_of_the_readme_work_in_their_order() {
    let (path, text) = document("README.md");
    let num_run = run_document(&path, &text);
    assert!(num_run > 10, "{num_run}");
    // what is not run exists
    let (_, makefile) = document("Makefile");
    for command in blocks(&text).into_iter().flat_map(|block| block.commands) {
        let Some(target) = command.strip_prefix("make ").and_then(|rest| rest.split_whitespace().next()) else {
            continue;
        };
        assert!(makefile.contains(&format!("\n{target}: ")), "Makefile has no target {target}");
    }
}

#[test]
fn the_commands_of_the_page_for_other_engines_work_in_their_order() {
    let (path, text) = document("docs/integrations.md");
    assert_eq!(run_document(&path, &text), 7);
}

#[test]
fn the_commands_of_the_page_for_an_own_shop_work_in_their_order() {
    let (path, text) = document("docs/your-shop.md");
    assert_eq!(run_document(&path, &text), 2);
}

#[test]
fn blocks_have_commands_and_marks() {
    let text = "<!-- not run: souk  b: needs Kafka -->\n```console\n$ souk a \\\n      --flag   # why\noutput\n$ souk   b x\n```\n\
                ```toml\n$ no command\n```\n<!-- not run: *: servers -->\n<!-- not run: gone: stale -->\n```console\n$ make\n```\n";
    let found = blocks(text);
    assert_eq!(found.len(), 2);
    assert_eq!(found[0].commands, ["souk a \\\n      --flag   # why", "souk   b x"]);
    assert_eq!((found[0].reason("souk a"), found[0].reason("souk   b x")), (None, Some("needs Kafka")));
    assert!(found[0].stale_marks().is_empty());
    assert_eq!((found[1].reason("make"), found[1].stale_marks()), (Some("servers"), vec!["gone"]));
}
