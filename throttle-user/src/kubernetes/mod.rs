//! Which pod and container a cgroup belongs to.
//!
//! Pure: takes paths and objects of the Kubernetes API, returns names; reads no file and asks no server. In reading order:
//!
//! - [`place`]: what the path of a cgroup says by itself: QoS class, pod UID, container id, runtime
//! - [`pods`]: what objects of the API say of pods and their containers
//! - [`name`]: both together

pub mod name;
pub mod place;
pub mod pods;

pub use name::{Name, NamedBy};
pub use place::{Place, Qos};
pub use pods::Pods;
