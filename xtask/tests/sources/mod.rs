//! What the files of throttle-user import, read from their tokens: `use` trees, inline paths and macro arguments alike;
//! comments and strings are no tokens of a path.

use std::fs;
use std::path::{Path, PathBuf};

use proc_macro2::{Delimiter, TokenStream, TokenTree};

/// One import that the table has a word on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Import {
    /// A module of throttle-user, or `wire`.
    Module(String),
    /// A crate of aya, under this name.
    Aya(String),
}

/// One file of throttle-user/src.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SourceFile {
    /// Relative to `src`.
    pub(crate) path: String,
    /// The top-level module it belongs to; `lib` and `main` for the two roots.
    pub(crate) module: String,
    /// In the order of the text.
    pub(crate) imports: Vec<Import>,
}

/// The workspace.
pub(crate) fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// All files of throttle-user/src.
pub(crate) fn of_throttle_user() -> Vec<SourceFile> {
    let src = root().join("throttle-user/src");
    let mut files = Vec::new();
    let mut folders = vec![src.clone()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).expect("the folder can be read") {
            let path = entry.expect("the entry can be read").path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let relative = path.strip_prefix(&src).expect("it is below src").to_str().expect("names are UTF-8");
                files.push(parse(relative, &fs::read_to_string(&path).expect("the file can be read")));
            }
        }
    }
    files
}

/// Reads `text` as the file `path`, relative to `src`.
pub(crate) fn parse(path: &str, text: &str) -> SourceFile {
    let parts: Vec<&str> = path.trim_end_matches(".rs").split('/').collect();
    // How many `super` lead from the file to the crate's root: one a module, none for the roots themselves.
    let depth = match parts[..] {
        ["lib" | "main"] => 0,
        [.., "mod"] => parts.len() - 1,
        _ => parts.len(),
    };
    let tokens: TokenStream = text.parse().unwrap_or_else(|error| panic!("{path} does not lex: {error}"));
    let mut imports = Vec::new();
    walk(tokens, depth, &mut imports);
    SourceFile { path: path.to_owned(), module: parts[0].to_owned(), imports }
}

/// Collects imports of tokens that stand `depth` modules below the crate's root.
fn walk(tokens: TokenStream, depth: usize, imports: &mut Vec<Import>) {
    let tokens: Vec<TokenTree> = tokens.into_iter().collect();
    let mut at = 0;
    while let Some(token) = tokens.get(at) {
        match token {
            TokenTree::Ident(name) => match name.to_string().as_str() {
                "crate" | "throttle_user" => imports.extend(heads(&tokens[at + 1..])),
                "throttle_ebpf" => imports.push(Import::Module("wire".to_owned())),
                name @ ("aya" | "aya_log" | "aya_obj") => imports.push(Import::Aya(name.to_owned())),
                "super" => {
                    let supers = 1 + repeated_supers(&tokens[at + 1..]);
                    at += 3 * (supers - 1);
                    if supers >= depth {
                        imports.extend(heads(&tokens[at + 1..]));
                    }
                }
                _ => {}
            },
            TokenTree::Group(group) => {
                let is_module = group.delimiter() == Delimiter::Brace
                    && at >= 2
                    && matches!(&tokens[at - 2], TokenTree::Ident(word) if word == "mod");
                walk(group.stream(), depth + usize::from(is_module), imports);
            }
            TokenTree::Punct(_) | TokenTree::Literal(_) => {}
        }
        at += 1;
    }
}

/// `:: super` again and again.
fn repeated_supers(rest: &[TokenTree]) -> usize {
    rest.chunks(3)
        .take_while(|three| {
            is_path_separator(three) && matches!(&three[2..], [TokenTree::Ident(word)] if word == "super")
        })
        .count()
}

/// The first names after the crate's root: of `:: a :: b` it is `a`, of `:: { a :: b, c }` they are `a` and `c`.
fn heads(rest: &[TokenTree]) -> Vec<Import> {
    if !is_path_separator(rest) {
        return Vec::new();
    }
    match rest.get(2) {
        Some(TokenTree::Ident(name)) => vec![Import::Module(name.to_string())],
        Some(TokenTree::Group(group)) => {
            let mut names = Vec::new();
            let mut expecting = true;
            for token in group.stream() {
                match token {
                    TokenTree::Ident(name) if expecting => {
                        names.push(Import::Module(name.to_string()));
                        expecting = false;
                    }
                    TokenTree::Punct(comma) if comma.as_char() == ',' => expecting = true,
                    _ => {}
                }
            }
            names
        }
        // `crate::*` takes everything: no module of that name has a row.
        Some(token) => vec![Import::Module(token.to_string())],
        None => Vec::new(),
    }
}

fn is_path_separator(tokens: &[TokenTree]) -> bool {
    matches!(tokens, [TokenTree::Punct(a), TokenTree::Punct(b), ..] if a.as_char() == ':' && b.as_char() == ':')
}
