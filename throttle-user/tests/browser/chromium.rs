//! A headless Chromium with the page of a run, driven over WebDriver; what that has no word for, by the browser's own protocol.

use std::{
    fs,
    io::{BufRead as _, BufReader},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
};

use base64::{Engine as _, prelude::BASE64_STANDARD};
use fantoccini::{
    Client, ClientBuilder,
    actions::{InputSource as _, KeyAction, KeyActions},
    wd::WebDriverCompatibleCommand,
};
use hyper_util::client::legacy::connect::HttpConnector;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio::runtime::Runtime;

/// An open page.
pub(crate) struct Shown {
    client: Client,
    runtime: Runtime,
    // Ends with the browser.
    _driver: Driver,
}

impl Shown {
    /// Opens a file in a window of this size.
    pub(crate) fn open(page: &Path, size: (u32, u32)) -> Self {
        let driver = Driver::start();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        // Without a sandbox, for there is none as root; the page is our own.
        let args = ["--headless=new", "--no-sandbox", "--hide-scrollbars", "--disable-dev-shm-usage", "--disable-gpu"];
        let wanted = json!({
            "goog:chromeOptions": { "args": args },
            "goog:loggingPrefs": { "browser": "ALL" },
        });
        let Value::Object(wanted) = wanted else { unreachable!("it is an object") };
        let client = runtime.block_on(async {
            ClientBuilder::new(HttpConnector::new()).capabilities(wanted).connect(&driver.url).await
        });
        let shown = Self { client: client.expect("chromium starts"), runtime, _driver: driver };
        shown.resize(size);
        let url = format!("file://{}", page.display());
        shown.runtime.block_on(shown.client.goto(&url)).expect("a page");
        shown.settled();
        shown
    }

    pub(crate) fn resize(&self, (width, height): (u32, u32)) {
        let metrics = json!({ "width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600 });
        self.browser("Emulation.setDeviceMetricsOverride", &metrics);
        self.settled();
    }

    /// Waits until what a change leads to was drawn: two frames.
    pub(crate) fn settled(&self) {
        let frames = "const done = arguments[0]; requestAnimationFrame(() => requestAnimationFrame(() => done(1)))";
        self.runtime.block_on(self.client.execute_async(frames, vec![])).expect("a frame");
    }

    /// A value of the page.
    pub(crate) fn value<T: DeserializeOwned>(&self, expression: &str) -> T {
        let script = format!("return JSON.stringify({expression})");
        let found = self.runtime.block_on(self.client.execute(&script, vec![]));
        let found = found.unwrap_or_else(|error| panic!("{expression}: {error}"));
        let json = found.as_str().unwrap_or_else(|| panic!("{expression}: {found}"));
        serde_json::from_str(json).unwrap_or_else(|error| panic!("{expression}: {error} in {json}"))
    }

    pub(crate) fn run(&self, script: &str) {
        let ran = self.runtime.block_on(self.client.execute(script, vec![]));
        ran.unwrap_or_else(|error| panic!("{script}: {error}"));
        self.settled();
    }

    /// Text of an element, as it is seen.
    pub(crate) fn text(&self, selector: &str) -> String {
        self.value(&format!("document.querySelector({selector:?}).innerText"))
    }

    /// Clicks in the middle of an element.
    pub(crate) fn click(&self, selector: &str) {
        self.run(&format!("document.querySelector({selector:?}).scrollIntoView({{block: 'center'}})"));
        let middle = self.value(&format!(
            "(() => {{ const box = document.querySelector({selector:?}).getBoundingClientRect(); \
             return [box.x + box.width / 2, box.y + box.height / 2]; }})()"
        ));
        self.mouse("mouseMoved", middle, 0);
        self.mouse("mousePressed", middle, 1);
        self.mouse("mouseReleased", middle, 0);
    }

    /// Presses a key: a character, or the name of one that has none.
    pub(crate) fn press(&self, key: &str) {
        // The code points that WebDriver gives to keys without a character.
        let value = match key {
            "Tab" => '\u{e004}',
            "Enter" => '\u{e007}',
            "ArrowRight" => '\u{e014}',
            _ => key.chars().next().expect("a key"),
        };
        let actions = KeyActions::new("keys".to_owned()).then(KeyAction::Down { value }).then(KeyAction::Up { value });
        self.runtime.block_on(self.client.perform_actions(actions)).unwrap_or_else(|error| panic!("{key}: {error}"));
        self.settled();
    }

    pub(crate) fn point_at(&self, at: (f64, f64)) {
        self.mouse("mouseMoved", at, 0);
    }

    /// Drags from one point to another.
    pub(crate) fn drag(&self, from: (f64, f64), to: (f64, f64)) {
        self.mouse("mouseMoved", from, 0);
        self.mouse("mousePressed", from, 1);
        self.mouse("mouseMoved", (from.0.midpoint(to.0), from.1.midpoint(to.1)), 1);
        self.mouse("mouseMoved", to, 1);
        self.mouse("mouseReleased", to, 0);
    }

    fn mouse(&self, kind: &str, (x, y): (f64, f64), buttons: u32) {
        let button = if kind == "mouseMoved" && buttons == 0 { "none" } else { "left" };
        let event = json!({ "type": kind, "x": x, "y": y, "button": button, "buttons": buttons, "clickCount": 1 });
        self.browser("Input.dispatchMouseEvent", &event);
        self.settled();
    }

    /// Leaves a picture of the whole page in `target/browser`.
    pub(crate) fn picture(&self, name: &str) {
        let (width, height): (u32, u32) = self.value("[innerWidth, innerHeight]");
        let whole: u32 = self.value("Math.ceil(document.documentElement.scrollHeight)");
        self.resize((width, whole));
        let taken = self.browser("Page.captureScreenshot", &json!({ "format": "png" }));
        self.resize((width, height));
        let png = BASE64_STANDARD.decode(taken["data"].as_str().expect("a picture")).expect("base 64");
        let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("../browser");
        fs::create_dir_all(&folder).expect("made");
        fs::write(folder.join(format!("{name}.png")), png).expect("written");
    }

    /// Nothing was thrown, nothing was complained about, and nothing was asked for from elsewhere.
    pub(crate) fn assert_quiet(&self) {
        let log = self.issue("se/log", json!({ "type": "browser" }));
        assert_eq!(log, json!([]));
        let fetched: Vec<String> = self.value("performance.getEntriesByType('resource').map((entry) => entry.name)");
        assert!(fetched.is_empty(), "the page asked for {fetched:?}");
    }

    /// A command of the browser's own protocol.
    fn browser(&self, command: &str, params: &Value) -> Value {
        self.issue("goog/cdp/execute", json!({ "cmd": command, "params": params }))
    }

    fn issue(&self, path: &'static str, body: Value) -> Value {
        let command = Vendor { path, body };
        self.runtime.block_on(self.client.issue_cmd(command)).unwrap_or_else(|error| panic!("{path}: {error}"))
    }
}

impl Drop for Shown {
    fn drop(&mut self) {
        // A browser that has ended already has nothing to close.
        let _ = self.runtime.block_on(self.client.clone().close());
    }
}

/// A command of ChromeDriver that WebDriver has not.
#[derive(Debug)]
struct Vendor {
    path: &'static str,
    body: Value,
}

impl WebDriverCompatibleCommand for Vendor {
    fn endpoint(&self, base: &url::Url, session: Option<&str>) -> Result<url::Url, url::ParseError> {
        base.join(&format!("session/{}/{}", session.unwrap_or_default(), self.path))
    }

    fn method_and_body(&self, _: &url::Url) -> (http::Method, Option<String>) {
        (http::Method::POST, Some(self.body.to_string()))
    }
}

/// ChromeDriver on a port of its choice.
struct Driver {
    process: Child,
    url: String,
}

impl Driver {
    fn start() -> Self {
        let started = Command::new("chromedriver").arg("--port=0").stdout(Stdio::piped()).stderr(Stdio::null()).spawn();
        let mut process = started.unwrap_or_else(|error| {
            panic!("chromedriver: {error}; install it with: apt-get install chromium chromium-driver")
        });
        let out = BufReader::new(process.stdout.take().expect("a pipe"));
        let port = out.lines().find_map(|line| {
            let line = line.expect("text");
            // It has said before which port it was asked for: 0.
            Some(line.split_once("started successfully on port ")?.1.trim_end_matches('.').to_owned())
        });
        Self { process, url: format!("http://127.0.0.1:{}", port.expect("it says on which port it listens")) }
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        self.process.kill().expect("it runs");
        self.process.wait().expect("ended");
    }
}
