//! Where requests go: a `http://host:port/path` taken apart.

use std::fmt;

use hyper::Uri;

use crate::request::WorkSpec;

/// An HTTP/1 server and a path on it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    host: String,
    port: u16,
    path: String,
}

/// A URL that is not a [`Target`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{url:?} is not a URL to send load to: {reason}. Give http://HOST:PORT, as printed by `throttle serve`")]
pub struct TargetError {
    /// The URL as given.
    pub url: String,
    /// What is wrong with it.
    pub reason: String,
}

impl Target {
    /// Takes a URL apart. Without a path it is `/burn`, without a port 80.
    ///
    /// # Errors
    /// [`TargetError`] for other schemes, a missing host, or a query (the query is made from the plan).
    pub fn parse(url: &str) -> Result<Self, TargetError> {
        let refuse = |reason: &str| TargetError { url: url.to_owned(), reason: reason.to_owned() };
        let uri: Uri = url.parse().map_err(|cause| refuse(&format!("{cause}")))?;
        match uri.scheme_str() {
            Some("http") => {}
            Some(_) => return Err(refuse("only plain http is spoken")),
            None => return Err(refuse("it does not begin with http://")),
        }
        if uri.query().is_some() {
            return Err(refuse("it has a query; say the work with --work, --threads and --mode"));
        }
        let host = uri.host().filter(|host| !host.is_empty()).ok_or_else(|| refuse("it names no host"))?;
        let host = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
        let port = match uri.authority().and_then(|authority| authority.as_str().strip_prefix(uri.host()?)) {
            None => return Err(refuse("it names a user")),
            Some("") => 80,
            Some(port) => match port.strip_prefix(':').and_then(|port| port.parse().ok()) {
                Some(port) if port > 0 => port,
                _ => return Err(refuse("the port is not from 1 to 65535")),
            },
        };
        let path = if uri.path() == "/" { "/burn" } else { uri.path() };
        Ok(Self { host: host.to_owned(), port, path: path.to_owned() })
    }

    /// Host and port as the resolver takes them.
    pub(super) fn endpoint(&self) -> (&str, u16) {
        (&self.host, self.port)
    }

    /// `host:port`, as it stands in the `Host` header and in error texts.
    #[must_use]
    pub fn authority(&self) -> String {
        if self.host.contains(':') {
            format!("[{}]:{}", self.host, self.port)
        } else {
            format!("{}:{}", self.host, self.port)
        }
    }

    /// Path and query that ask for `work`.
    pub(super) fn path_and_query(&self, work: &WorkSpec) -> String {
        match work.query() {
            query if query.is_empty() => self.path.clone(),
            query => format!("{}?{query}", self.path),
        }
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "http://{}{}", self.authority(), self.path)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::request::FanOut;
    use crate::time::DurationNs;

    #[test]
    fn a_url_without_a_path_means_the_burn_route() {
        let target = Target::parse("http://127.0.0.1:8080").expect("a target");
        assert_eq!(target.to_string(), "http://127.0.0.1:8080/burn");
        assert_eq!(target, Target::parse("http://127.0.0.1:8080/").expect("a target"));
    }

    #[test]
    fn hosts_by_name_by_address_and_without_a_port_are_taken() {
        assert_eq!(Target::parse("http://web.pod.local").map(|t| t.authority()), Ok("web.pod.local:80".to_owned()));
        let six = Target::parse("http://[::1]:9/x").expect("a target");
        assert_eq!((six.endpoint(), six.to_string().as_str()), (("::1", 9), "http://[::1]:9/x"));
    }

    #[test]
    fn what_cannot_be_sent_to_is_refused_with_the_url_and_the_reason() {
        for (url, reason) in [
            ("https://a:1", "plain http"),
            ("127.0.0.1:80", "http://"),
            ("/burn", "http://"),
            ("http://a:1/burn?work_ms=5", "--work"),
            ("http://a:0", "1 to 65535"),
            ("http://a:99999", "1 to 65535"),
            ("http://me@a:80", "user"),
            ("", "empty"),
        ] {
            let error = Target::parse(url).expect_err(url).to_string();
            assert!(error.contains(reason) && error.contains(&format!("{url:?}")), "{error}");
        }
    }

    #[test]
    fn the_query_says_what_the_plan_says_and_nothing_else() {
        let target = Target::parse("http://a:1").expect("a target");
        assert_eq!(target.path_and_query(&WorkSpec::default()), "/burn");
        let work = WorkSpec { work_ns: Some(DurationNs(1_500_001)), threads: Some(2), fan_out: Some(FanOut::Whole) };
        assert_eq!(target.path_and_query(&work), "/burn?work_ms=1.500001&threads=2&mode=whole");
    }
}
